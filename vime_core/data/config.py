"""Settings of the prompt sources in core."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core.config.schema import DataConfig


@dataclass(kw_only=True)
class FilesConfig(DataConfig):
    """Prompts from parquet and jsonl files: in the DAPO schema, or plain rows with the keys named here.

    `train` is a file, or a pattern such as `prompts/*.parquet` whose files are read in the order of their names.
    A file whose first row has `reward_model` is in the DAPO schema (`prompt`, `reward_model.ground_truth`,
    `data_source`, `extra_info.index`); the keys below are not used for it.
    """

    name: str = "files"
    """The entry that is used."""
    prompt_key: str = "prompt"
    """Plain rows: a string, which becomes one user message, or a list of chat messages."""
    label_key: str = "label"
    """Plain rows: the reference answer, a string or a number."""
    source_key: str = "data_source"
    """Plain rows: name of the data set; may be missing."""
    id_key: str = "id"
    """Plain rows: a lasting id of the prompt; the file's name and the row's number when missing."""
