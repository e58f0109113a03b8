"""Which files a folder must hold, with sizes and checksums."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

MANIFEST = "manifest.json"
BLOCK_BYTES = 8 << 20
READERS = 8
"""Files read at one time; xxhash releases the interpreter lock."""


def write_manifest(folder: Path) -> None:
    """List all files in the folder, with bytes and XXH3 checksums, in `manifest.json`."""
    names = sorted(str(Path(root, name).relative_to(folder)) for root, _, files in os.walk(folder) for name in files)
    files = dict(zip(names, _describe(folder, names), strict=True))
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")


def damage(folder: Path) -> str | None:
    """What differs from the manifest, in a few words, or None. Files that it does not list are not looked at."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        expected = {name: (entry["bytes"], entry["xxh3_128"]) for name, entry in files.items()}
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return f"{MANIFEST} is not readable"
    for name, (size, _) in expected.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if (folder / name).stat().st_size != size:
            return f"{name} holds {(folder / name).stat().st_size} bytes instead of {size}"
    for name, found in zip(expected, _describe(folder, list(expected)), strict=True):
        if found["xxh3_128"] != expected[name][1]:
            return f"{name} has another checksum than when it was saved"
    return None


def _describe(folder: Path, names: list[str]) -> list[dict[str, int | str]]:
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(lambda name: _describe_file(folder / name), names))


def _describe_file(path: Path) -> dict[str, int | str]:
    checksum, size = xxhash.xxh3_128(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            checksum.update(block)
            size += len(block)
    return {"bytes": size, "xxh3_128": checksum.hexdigest()}
