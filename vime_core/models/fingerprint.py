"""Has a model folder changed? Told without reading all of its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from vime_core.models.checkpoint import INDEX_FILE, SafetensorsFolder
from vime_core.models.export import COPIED_FILES

if TYPE_CHECKING:
    from pathlib import Path

WHOLE_FILES = ("config.json", INDEX_FILE, *COPIED_FILES)
"""Files besides the weights that a run reads; small enough to read whole."""
BLOCKS = 64
BLOCK_BYTES = 64 << 10


def model_fingerprint(path: Path) -> dict[str, str]:
    """File name -> checksum of what a run reads from a model folder.

    Of weights the size, the start (the header) and evenly spread blocks are looked at: training moves every tensor,
    so that another checkpoint differs in nearly all of them, while a single changed byte can go unseen.

    Raises:
        ModelError: when weights are missing or damaged.
    """
    small = [path / name for name in WHOLE_FILES if (path / name).is_file()]
    weights = sorted({info.file for info in SafetensorsFolder(path).tensors.values()})
    checksums = {file.name: str(xxhash.xxh3_128_hexdigest(file.read_bytes())) for file in small}
    return checksums | {file.name: _sampled(file) for file in weights}


def _sampled(file: Path) -> str:
    size = file.stat().st_size
    digest = xxhash.xxh3_128(str(size).encode())
    with file.open("rb") as stream:
        for block in range(BLOCKS):
            stream.seek(max(0, size - BLOCK_BYTES) * block // (BLOCKS - 1))
            digest.update(stream.read(BLOCK_BYTES))
    return digest.hexdigest()
