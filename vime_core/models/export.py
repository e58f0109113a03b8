"""Writing a model folder in Hugging Face format."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.errors import ModelError
from vime_core.models.checkpoint import DTYPE_BYTES, INDEX_FILE, SINGLE_FILE, read_header
from vime_core.models.tensors import tensor_shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from vime_core.models.checkpoint import TensorInfo
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
        write_parts(aside, source, tensors, max_shard_bytes=max_shard_bytes)
        finish_export(aside, source)
        aside.chmod(0o755)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside)
        raise


def write_parts(
    folder: Path,
    source: LocalModel,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    max_shard_bytes: int,
    writer: int = 0,
) -> None:
    """Write weights as files that `finish_export` makes a model folder of.

    Args:
        folder: Where files of this and other writers go.
        source: Model that the weights descend from.
        tensors: Those of this writer, see `export_model`.
        max_shard_bytes: A file gets no further tensor that would make it larger.
        writer: Number among those that write at one time.

    Raises:
        ModelError: when a file cannot be written, or a tensor is unknown, repeated or of a wrong shape.
    """
    parts = _Parts(folder, writer, tensor_shapes(source.geometry, source.tensor_map), max_shard_bytes)
    for name, tensor in tensors:
        parts.add(name, tensor)
    parts.flush()


def finish_export(folder: Path, source: LocalModel) -> None:
    """Name the files that `write_parts` left in a folder, and add index, configuration and tokenizer.

    Raises:
        ModelError: when a tensor is missing, or two files hold it.
    """
    files = sorted(folder.glob(f"{PART_PREFIX}*"))
    headers = [read_header(file) for file in files]
    found = Counter(name for header in headers for name in header)
    repeated = [name for name, count in found.items() if count > 1]
    if repeated:
        raise ModelError(f"export: tensor {repeated[0]} is exported twice")
    wanted = tensor_shapes(source.geometry, source.tensor_map)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ModelError(f"export: {len(missing)} tensors are missing, first {missing[0]}")
    if len(files) == 1:
        files[0].rename(folder / SINGLE_FILE)
    else:
        _write_index(folder, files, headers, wanted)
    dtypes = {info.dtype for header in headers for info in header.values()}
    _write_config(folder / "config.json", source.hf_config, dtypes)
    for name in COPIED_FILES:
        if (source.path / name).is_file():
            shutil.copyfile(source.path / name, folder / name)


PART_PREFIX = "part-"


class _Parts:
    """Collects tensors into files of bounded size."""

    def __init__(self, folder: Path, writer: int, wanted: Mapping[str, tuple[int, ...]], max_shard_bytes: int):
        self._folder = folder
        self._writer = writer
        self._wanted = wanted
        self._max_shard_bytes = max_shard_bytes
        self._shard: dict[str, torch.Tensor] = {}
        self._shard_bytes = 0
        self._files = 0
        self._written: set[str] = set()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take a copy of one tensor; writes a file when the shard is full, and a larger tensor at once."""
        shape = self._wanted.get(name)
        if shape is None or name in self._written:
            problem = "is exported twice" if name in self._written else "is not in the model's tensor map"
            raise ModelError(f"export: tensor {name} {problem}")
        if tuple(tensor.shape) != shape:
            raise ModelError(f"export: tensor {name} has shape {list(tensor.shape)}, the model has {list(shape)}")
        size = tensor.numel() * tensor.element_size()
        if self._shard_bytes + size > self._max_shard_bytes:
            self.flush()
        alone = size > self._max_shard_bytes
        self._shard[name] = tensor.detach().to("cpu", copy=not alone).contiguous()
        self._shard_bytes += size
        self._written.add(name)
        if alone:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        if not self._shard:
            return
        part = self._folder / f"{PART_PREFIX}{self._writer:05d}-{self._files:05d}"
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
        self._files += 1
        self._shard, self._shard_bytes = {}, 0


def _write_index(
    folder: Path, files: Sequence[Path], headers: Sequence[Mapping[str, TensorInfo]], wanted: Iterable[str]
) -> None:
    places: dict[str, str] = {}
    total = 0
    for number, (file, header) in enumerate(zip(files, headers, strict=True), 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        file.rename(folder / name)
        places |= dict.fromkeys(header, name)
        total += sum(math.prod(info.shape) * DTYPE_BYTES[info.dtype] for info in header.values())
    index = {"metadata": {"total_size": total}, "weight_map": {name: places[name] for name in wanted}}
    _write_json(folder / INDEX_FILE, index)


TORCH_NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types of weights as safetensors writes them, to torch's names."""


def _write_config(file: Path, hf_config: Mapping[str, Any], dtypes: set[str]) -> None:
    """`config.json`, with the type of the weights as they are written, which loaders go by."""
    config = dict(hf_config)
    if len(dtypes) == 1:
        key = "dtype" if "dtype" in config else "torch_dtype"
        (dtype,) = dtypes
        config[key] = TORCH_NAMES.get(dtype, dtype)
    _write_json(file, config)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
