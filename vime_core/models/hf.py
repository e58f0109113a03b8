"""A model folder in Hugging Face format, checked before anything expensive starts. No torch."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.errors import ModelError
from vime_core.models.stacked import open_weights
from vime_core.models.tensors import tensor_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from vime_core.models.checkpoint import SafetensorsFolder
    from vime_core.models.family import ModelFamily
    from vime_core.models.geometry import ModelGeometry, TensorRule

log = logging.getLogger(__name__)

TRAINABLE_DTYPES = frozenset({"F32", "BF16", "F16"})

TOKENIZER_FILE_SETS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))
"""Each set is enough to build a tokenizer from."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a model is, without its weights."""

    hf_config: Mapping[str, Any]
    """`config.json`"""
    generation_config: Mapping[str, Any] | None
    """`generation_config.json`, where there is one."""
    family_name: str
    geometry: ModelGeometry
    tensor_map: Sequence[TensorRule]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model folder that passed all checks."""

    path: Path
    hf_config: Mapping[str, Any]
    """`config.json`"""
    generation_config: Mapping[str, Any] | None
    """`generation_config.json`, where there is one."""
    family_name: str
    geometry: ModelGeometry
    tensor_map: Sequence[TensorRule]
    extra_tensors: tuple[str, ...]
    """Tensors of the checkpoint that the family has no use for; they are not trained and not exported."""


def inspect_model(path: Path, families: Mapping[str, ModelFamily], family_name: str = "auto") -> LocalModel:
    """Check a model folder; reads configuration files and safetensors headers, no tensor data.

    Args:
        path: The folder.
        families: All model families there are, by name.
        family_name: The family to use, or `auto` to find it from `config.json`.

    Raises:
        ModelError: one line with the file or key, what is wrong and what to do.
    """
    if not path.is_dir():
        raise ModelError(f"model.path {path} is not a folder; give one in Hugging Face format, downloaded beforehand")
    read = read_architecture(path, families, family_name)
    _check_config(path, read.hf_config, read.geometry)
    _check_tokenizer(path)
    shapes = tensor_shapes(read.geometry, read.tensor_map)
    extra = _check_tensors(open_weights(path, read.geometry, read.tensor_map), shapes)
    return LocalModel(
        path, read.hf_config, read.generation_config, read.family_name, read.geometry, read.tensor_map, extra
    )


def read_architecture(path: Path, families: Mapping[str, ModelFamily], family_name: str = "auto") -> Architecture:
    """What the configuration files of a model folder describe; the folder need not hold anything else.

    Raises:
        ModelError: one line with the file or key, what is wrong and what to do.
    """
    hf_config = _read_json(path / "config.json")
    generation_file = path / "generation_config.json"
    generation_config = _read_json(generation_file) if generation_file.exists() else None
    family_name = _choose_family(path, hf_config, families, family_name)
    family = families[family_name]
    try:
        geometry = family.geometry(hf_config, generation_config)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    return Architecture(hf_config, generation_config, family_name, geometry, tuple(family.tensor_map(geometry)))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(
            f"{file.parent} has no {file.name}; model.path must be a folder in Hugging Face format"
        ) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} must hold a JSON object, not {type(content).__name__}; download it again")
    return content


def _choose_family(
    path: Path, hf_config: Mapping[str, Any], families: Mapping[str, ModelFamily], family_name: str
) -> str:
    described = f"{path / 'config.json'} (model_type {hf_config.get('model_type')!r})"
    known = ", ".join(sorted(families)) or "none is installed"
    if family_name != "auto":
        if family_name not in families:
            raise ModelError(f"there is no model family {family_name!r}; known families: {known}")
        if not families[family_name].matches(hf_config):
            raise ModelError(f"{described} is not of family {family_name}; set model=auto or give another model.path")
        return family_name
    matching = sorted(name for name, family in families.items() if family.matches(hf_config))
    if not matching:
        raise ModelError(f"{described} is of no known family ({known}); install a plugin for it")
    if len(matching) > 1:
        raise ModelError(f"{described} fits several families; choose one with model={' or model='.join(matching)}")
    return matching[0]


def _check_config(path: Path, hf_config: Mapping[str, Any], geometry: ModelGeometry) -> None:
    if hf_config.get("quantization_config"):
        raise ModelError(f"{path} holds quantised weights (quantization_config); train from the unquantised model")
    if not geometry.eos_token_ids:
        raise ModelError(
            f"{path}: neither config.json nor generation_config.json has an eos_token_id, so that no response would "
            "end; add it"
        )


def _check_tokenizer(path: Path) -> None:
    if not any(all((path / name).is_file() for name in names) for names in TOKENIZER_FILE_SETS):
        choices = ", or ".join(" and ".join(names) for names in TOKENIZER_FILE_SETS)
        raise ModelError(f"{path} has no tokenizer; it needs {choices}")


def _check_tensors(folder: SafetensorsFolder, wanted: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """The names of further tensors."""
    missing = [name for name in wanted if name not in folder.tensors]
    if missing:
        raise ModelError(
            f"{folder.path} lacks tensor {missing[0]}{_others(missing)}; its config.json is of another model or the "
            "weights are incomplete"
        )
    wrong = [name for name, shape in wanted.items() if folder.tensors[name].shape != shape]
    if wrong:
        found = list(folder.tensors[wrong[0]].shape)
        raise ModelError(
            f"{folder.path}: tensor {wrong[0]} has shape {found}, config.json asks for {list(wanted[wrong[0]])}"
            f"{_others(wrong)}; config.json and weights are of different models"
        )
    untrainable = [name for name in wanted if folder.tensors[name].dtype not in TRAINABLE_DTYPES]
    if untrainable:
        raise ModelError(
            f"{folder.path}: tensor {untrainable[0]} is {folder.tensors[untrainable[0]].dtype}{_others(untrainable)}; "
            "train from an unquantised model (float32, bfloat16 or float16)"
        )
    extra = tuple(name for name in folder.tensors if name not in wanted)
    if extra:
        log.warning("%s: tensor %s is not used by the model%s", folder.path, extra[0], _others(extra))
    return extra


def _others(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
