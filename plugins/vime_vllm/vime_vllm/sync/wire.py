"""What the trainer tells an engine about a bucket of weights: plain JSON values, checked on arrival."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Buffer

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
}
"""Names of torch dtypes that may travel, and bytes of an element."""

_SEGMENT = re.compile(r"vime-(?P<run>\w+)-[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """Where one tensor lies in a segment."""

    name: str
    """As in the Hugging Face checkpoint."""
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the segment."""
    size: int
    """Bytes."""
    checksum: str
    """xxh3-128 of the bytes, 32 hexadecimal digits."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, record: Any) -> TensorRecord:
        """Check and read one record.

        Raises:
            ValueError: says what is wrong with it.
        """
        if not isinstance(record, dict) or set(record) != set(cls.__slots__):
            raise ValueError(f"a tensor record must have the keys {', '.join(cls.__slots__)}, not {record!r}")
        name, dtype, shape, offset, size = (record[key] for key in ("name", "dtype", "shape", "offset", "size"))
        if not isinstance(name, str) or not isinstance(record["checksum"], str):
            raise ValueError(f"name and checksum of a tensor must be text, not {name!r} and {record['checksum']!r}")
        if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
            raise ValueError(f"{name}: dtype {dtype!r} cannot travel")
        if not isinstance(shape, list) or not all(_is_count(value) for value in (*shape, offset, size)):
            raise ValueError(f"{name}: shape {shape!r}, offset {offset!r} and size {size!r} must be counts")
        if size != math.prod(shape) * DTYPE_BYTES[dtype]:
            raise ValueError(f"{name}: {size} bytes are not those of {dtype} {shape}")
        return cls(name, dtype, tuple(shape), offset, size, record["checksum"])


def read_bucket(tensors: Any, segment_size: int) -> list[TensorRecord]:
    """Check and read the records of a bucket.

    Raises:
        ValueError: says what is wrong.
    """
    if not isinstance(tensors, list):
        raise ValueError(f"the tensors of a bucket must be a list, not {type(tensors).__name__}")
    records = [TensorRecord.from_json(record) for record in tensors]
    for record in records:
        if record.offset + record.size > segment_size:
            raise ValueError(f"{record.name} ends beyond the {segment_size} bytes of its memory")
    return records


def check_segment_name(name: Any, run_id: str) -> None:
    """Check that a name is one of the run's segments, and no path to anything else.

    Raises:
        ValueError: when it is not.
    """
    match = _SEGMENT.fullmatch(name) if isinstance(name, str) else None
    if match is None or match["run"] != run_id:
        raise ValueError(f"{name!r} is no segment of run {run_id}")


def checksum(data: Buffer) -> str:
    """xxh3-128 as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def require_checksum(record: TensorRecord, data: Buffer) -> None:
    """Raise `ValueError` when the bytes of a tensor are not those that were sent."""
    found = checksum(data)
    if found != record.checksum:
        raise ValueError(f"{record.name}: checksum {found} of the bytes read is not {record.checksum} as sent")


def update_json(segment: str, records: Sequence[TensorRecord]) -> Mapping[str, Any]:
    """The `update_info` of one bucket."""
    return {"segment": segment, "tensors": [record.to_json() for record in records]}


def device_update_json(buffer: int, handles: Mapping[str, Any], records: Sequence[TensorRecord]) -> Mapping[str, Any]:
    """The `update_info` of one bucket in device memory; `handles` by the UUID of the device."""
    return {"buffer": buffer, "handles": handles, "tensors": [record.to_json() for record in records]}


def group_update_json(
    version: int, bucket: int, size: int, timeout_s: float, records: Sequence[TensorRecord]
) -> Mapping[str, Any]:
    """The `update_info` of one bucket that is broadcast: `size` bytes, which an engine awaits for `timeout_s`."""
    tensors = [record.to_json() for record in records]
    return {"version": version, "bucket": bucket, "size": size, "timeout_s": timeout_s, "tensors": tensors}


def bucket_mark(version: int, bucket: int) -> str:
    """What a worker writes that is done with a bucket, whether it got it or not."""
    return f"version {version}, bucket {bucket}"


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
