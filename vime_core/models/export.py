"""Writing a model folder in Hugging Face format."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.errors import ModelError
from vime_core.models.checkpoint import INDEX_FILE, SINGLE_FILE
from vime_core.models.tensors import tensor_shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from vime_core.models.hf import LocalModel

COPIED_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files that travel with the weights as they are, where the source has them."""


def export_model(
    folder: Path,
    source: LocalModel,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Write a folder that transformers and vLLM load like the source.

    The folder is complete or absent: it is written beside its place and renamed at the end.

    Args:
        folder: New folder; its parent is made.
        source: Model that the weights descend from; gives configuration and tokenizer.
        tensors: Every tensor of the source's tensor map once, in any order and on any device; each is copied or
            written before the next one is taken, and at most one shard is held in memory.
        max_shard_bytes: A file gets no further tensor that would make it larger.

    Raises:
        ModelError: when the folder exists or cannot be written, or a tensor is unknown, missing, repeated or of a wrong
            shape.
    """
    if folder.exists():
        raise ModelError(f"{folder} exists already; export to a new folder, or remove it first")
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    try:
        writer = _ShardWriter(aside, tensor_shapes(source.geometry, source.tensor_map), max_shard_bytes)
        for name, tensor in tensors:
            writer.add(name, tensor)
        dtypes = writer.finish()
        _write_config(aside / "config.json", source.hf_config, dtypes)
        for name in COPIED_FILES:
            if (source.path / name).is_file():
                shutil.copyfile(source.path / name, aside / name)
        aside.chmod(0o755)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside)
        raise


class _ShardWriter:
    """Collects tensors into files of bounded size; names and index are settled by `finish`."""

    def __init__(self, folder: Path, wanted: Mapping[str, tuple[int, ...]], max_shard_bytes: int):
        self._folder = folder
        self._wanted = wanted
        self._max_shard_bytes = max_shard_bytes
        self._shard: dict[str, torch.Tensor] = {}
        self._shard_bytes = 0
        self._shards: list[list[str]] = []
        self._total_bytes = 0
        self._written: set[str] = set()
        self._dtypes: set[str] = set()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take a copy of one tensor; writes a file when the shard is full, and a larger tensor at once."""
        shape = self._wanted.get(name)
        if shape is None or name in self._written:
            problem = "is exported twice" if name in self._written else "is not in the model's tensor map"
            raise ModelError(f"export: tensor {name} {problem}")
        if tuple(tensor.shape) != shape:
            raise ModelError(f"export: tensor {name} has shape {list(tensor.shape)}, the model has {list(shape)}")
        size = tensor.numel() * tensor.element_size()
        if self._shard and self._shard_bytes + size > self._max_shard_bytes:
            self._flush()
        alone = size > self._max_shard_bytes
        self._shard[name] = tensor.detach().to("cpu", copy=not alone).contiguous()
        self._shard_bytes += size
        self._written.add(name)
        self._dtypes.add(str(tensor.dtype).removeprefix("torch."))
        if alone:
            self._flush()

    def finish(self) -> set[str]:
        """Write what is left, give the files their final names; returns the dtypes seen."""
        missing = [name for name in self._wanted if name not in self._written]
        if missing:
            raise ModelError(f"export: {len(missing)} tensors are missing, first {missing[0]}")
        if self._shard:
            self._flush()
        if len(self._shards) == 1:
            self._part(0).rename(self._folder / SINGLE_FILE)
            return self._dtypes
        weight_map: dict[str, str] = {}
        for index, names in enumerate(self._shards):
            file = f"model-{index + 1:05d}-of-{len(self._shards):05d}.safetensors"
            self._part(index).rename(self._folder / file)
            weight_map.update(dict.fromkeys(names, file))
        index_content = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        _write_json(self._folder / INDEX_FILE, index_content)
        return self._dtypes

    def _part(self, index: int) -> Path:
        return self._folder / f"part-{index:05d}"

    def _flush(self) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        part = self._part(len(self._shards))
        try:
            save_file(self._shard, part, metadata={"format": "pt"})
        except SafetensorError as error:
            place = self._folder.parent
            free = shutil.disk_usage(place).free >> 20
            raise ModelError(
                f"cannot write weights in {place} ({error}; {free} MiB are free there); make room, or choose another "
                "place"
            ) from error
        part.chmod(0o644)  # safetensors lets only the owner read
        self._shards.append(list(self._shard))
        self._total_bytes += self._shard_bytes
        self._shard, self._shard_bytes = {}, 0


def _write_config(file: Path, hf_config: Mapping[str, Any], dtypes: set[str]) -> None:
    """`config.json`, with the type of the weights as they are written, which loaders go by."""
    config = dict(hf_config)
    if len(dtypes) == 1:
        key = "dtype" if "dtype" in config else "torch_dtype"
        config[key] = next(iter(dtypes))
    _write_json(file, config)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
