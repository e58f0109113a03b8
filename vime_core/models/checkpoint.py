"""Safetensors checkpoints: headers without torch, tensors one at a time.

Format: https://huggingface.co/docs/safetensors - 8 bytes little-endian header length N, N bytes of JSON, data.
"""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from vime_core.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import torch

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""

DTYPE_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True, slots=True)
class StackedPart:
    """Rows `start` to `stop` of entry `index` of a tensor that stacks the parameters of all experts."""

    tensor: str
    index: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says of one tensor."""

    file: Path
    dtype: str
    """As safetensors writes it, e.g. `BF16`."""
    shape: tuple[int, ...]
    part: StackedPart | None = None
    """Where it lies in another tensor of the file; None for a tensor of its own."""


def read_header(file: Path) -> dict[str, TensorInfo]:
    """All tensors of a safetensors file; reads the header only.

    Raises:
        ModelError: when the file is missing, is no safetensors file or has not its whole length.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            if prefix == b"version ":
                raise ModelError(f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder")
            if len(prefix) < 8 or not 2 <= length <= MAX_HEADER_BYTES:
                raise ModelError(f"{file} is not a safetensors file; download it again")
            header = stream.read(length)
    except OSError as error:
        raise ModelError(f"{file} cannot be read ({error.strerror}); download it or correct its permissions") from error
    if len(header) < length:
        raise ModelError(f"{file} is cut off within its header; download it again")
    tensors, data_bytes = _parse_header(file, header)
    if size != 8 + length + data_bytes:
        raise ModelError(f"{file} has {size} bytes, its header asks for {8 + length + data_bytes}; download it again")
    return tensors


def _parse_header(file: Path, header: bytes) -> tuple[dict[str, TensorInfo], int]:
    try:
        entries: dict[str, Any] = json.loads(header)
        entries.pop("__metadata__", None)
        tensors = {name: TensorInfo(file, e["dtype"], tuple(map(int, e["shape"]))) for name, e in entries.items()}
        spans = sorted((int(e["data_offsets"][0]), int(e["data_offsets"][1]), name) for name, e in entries.items())
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ModelError(f"{file} has a malformed safetensors header ({error!r}); download it again") from error
    position = 0
    for begin, end, name in spans:
        info = tensors[name]
        wanted = math.prod(info.shape) * DTYPE_BYTES.get(info.dtype, 0)
        if begin != position or (info.dtype in DTYPE_BYTES and end - begin != wanted):
            raise ModelError(f"{file}: the header gives tensor {name} a wrong place or length; download it again")
        position = end
    return tensors, position


class SafetensorsFolder:
    """The weights of a folder in Hugging Face format: one `model.safetensors`, or shards with an index.

    Raises:
        ModelError: when weights or shards are missing or damaged.
    """

    def __init__(self, path: Path):
        self.path = path
        self.tensors: Mapping[str, TensorInfo] = _read_headers(path)

    def load(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """The named tensors on the CPU, one at a time, in the order asked for.

        Raises:
            ModelError: for a name that the folder does not have.
        """
        from safetensors import safe_open

        with ExitStack() as stack:
            handles: dict[Path, Any] = {}
            for name in names:
                if name not in self.tensors:
                    raise ModelError(f"{self.path} has no tensor {name}")
                file, part = self.tensors[name].file, self.tensors[name].part
                if file not in handles:
                    handles[file] = stack.enter_context(safe_open(file, framework="pt", device="cpu"))
                if part is None:
                    yield name, handles[file].get_tensor(name)
                else:
                    yield name, handles[file].get_slice(part.tensor)[part.index, part.start : part.stop]


def _read_headers(path: Path) -> dict[str, TensorInfo]:
    if (path / SINGLE_FILE).exists():
        return read_header(path / SINGLE_FILE)
    if not (path / INDEX_FILE).exists():
        raise ModelError(_without_weights(path))
    weight_map = _read_index(path / INDEX_FILE)
    files = sorted(set(weight_map.values()))
    missing = [name for name in files if not (path / name).is_file()]
    if missing:
        raise ModelError(
            f"{path} lacks {len(missing)} of {len(files)} weight files that {INDEX_FILE} names, first {missing[0]}; "
            "download them"
        )
    headers = {name: read_header(path / name) for name in files}
    for tensor, name in weight_map.items():
        if tensor not in headers[name]:
            raise ModelError(
                f"{path / name} lacks tensor {tensor}, which {INDEX_FILE} places there; download both again"
            )
    return {tensor: headers[name][tensor] for tensor, name in weight_map.items()}


def _read_index(file: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        plain = all(PurePath(name).name == name for name in weight_map.values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{file} is not a safetensors index ({error!r}); download it again") from error
    if not weight_map or not plain:
        raise ModelError(f"{file} must name at least one weight file, each in the same folder; download it again")
    return dict(weight_map)


def _without_weights(path: Path) -> str:
    if any(path.glob("*.bin")) or any(path.glob("*.pt")) or any(path.glob("*.pth")):
        return (
            f"{path} has pickled weights only; convert them once with transformers: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
        )
    return f"{path} has no weights: neither {SINGLE_FILE} nor {INDEX_FILE}; download the whole model"
