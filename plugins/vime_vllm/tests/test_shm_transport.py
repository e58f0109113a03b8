"""Tensors through shared memory: packing, reading, and every input that must be refused."""

from __future__ import annotations

import os
import secrets
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.errors import ResourceError, SyncError
from vime_vllm.sync.bucket import Bucket, buckets
from vime_vllm.sync.segment import FOLDER, Segment, read_segment
from vime_vllm.sync.unpack import read_weights
from vime_vllm.sync.wire import update_json

RUN_ID = f"test{os.getpid()}"


@pytest.fixture
def segments():
    found = [Segment(f"vime-{RUN_ID}-{secrets.token_hex(4)}") for _ in range(2)]
    yield found
    for segment in found:
        segment.close()
    assert not list(FOLDER.glob(f"vime-{RUN_ID}-*"))


@pytest.fixture
def sent(segments):
    """A bucket with two tensors, as an engine is told of it."""
    bucket = Bucket(segments[0], 1 << 20)
    bucket.add("a", torch.arange(6, dtype=torch.float32).reshape(2, 3))
    bucket.add("b", torch.ones(5, dtype=torch.bfloat16))
    return update_json(bucket.segment.name, bucket.records)


def _read(sent):
    return read_weights(sent["segment"], sent["tensors"], RUN_ID)


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8]
TENSORS = st.lists(
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3), st.booleans()), min_size=1, max_size=12
)


@settings(max_examples=50, deadline=None)
@given(TENSORS, st.integers(1, 2000))
def test_every_tensor_arrives_bit_equal_and_in_order(shapes, capacity):
    segments = [Segment(f"vime-{RUN_ID}-{secrets.token_hex(4)}") for _ in range(2)]
    weights = []
    for index, (dtype, shape, transposed) in enumerate(shapes):
        tensor = torch.randint(0, 100, shape).to(dtype)
        weights.append((f"w{index}", tensor.T if transposed and tensor.ndim == 2 else tensor))
    arrived = []
    try:
        for bucket in buckets(iter(weights), segments, capacity):
            end = max(record.offset + record.size for record in bucket.records)
            assert end <= capacity or len(bucket.records) == 1
            arrived += _read(update_json(bucket.segment.name, bucket.records))
    finally:
        for segment in segments:
            segment.close()
    assert [name for name, _ in arrived] == [name for name, _ in weights]
    for (_, found), (_, expected) in zip(arrived, weights, strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_buckets_take_turns_and_a_larger_tensor_travels_alone(segments):
    small, large = torch.zeros(64, dtype=torch.uint8), torch.zeros(1000, dtype=torch.uint8)
    weights = [("a", small), ("b", small), ("c", large), ("d", small)]
    found = [(b.segment, [record.name for record in b.records]) for b in buckets(weights, segments, 128)]
    assert found == [(segments[0], ["a", "b"]), (segments[1], ["c"]), (segments[0], ["d"])]


def test_a_segment_is_no_larger_than_needed_and_is_reused(segments):
    for _ in range(3):
        bucket = Bucket(segments[0], 1 << 30)
        for index in range(20):
            bucket.add(f"w{index}", torch.zeros(1000))
        assert segments[0].size < 4 * 20 * 4096
    assert (FOLDER / segments[0].name).stat().st_size == segments[0].size


def test_what_is_read_is_a_copy(segments, sent):
    [(_, first), _] = _read(sent)
    with segments[0].view(0, 24) as view:
        view[:] = bytes(24)
    assert first.sum() == 15


def test_segments_are_readable_by_their_owner_only(segments, sent):
    assert (FOLDER / segments[0].name).stat().st_mode & 0o777 == 0o600


def test_too_little_shared_memory_names_needed_and_free_bytes(segments):
    size = shutil.disk_usage(FOLDER).total + 4096
    with pytest.raises(ResourceError, match=rf"needs {size} bytes.*has \d+ free.*sync.bucket_mib"):
        segments[0].reserve(size)


def test_a_dtype_that_cannot_travel_names_the_tensor(segments):
    with pytest.raises(SyncError, match="mask has dtype bool"):
        Bucket(segments[0], 100).add("mask", torch.ones(3, dtype=torch.bool))


def test_a_changed_byte_is_found(segments, sent):
    with segments[0].view(20, 1) as view:
        view[0] ^= 1
    with pytest.raises(ValueError, match="a: checksum"):
        _read(sent)


def test_two_tensors_that_changed_places_are_found(segments):
    bucket = Bucket(segments[0], 1 << 20)
    bucket.add("a", torch.zeros(4))
    bucket.add("b", torch.ones(4))
    one, other = update_json(bucket.segment.name, bucket.records)["tensors"]
    one["offset"], other["offset"] = other["offset"], one["offset"]
    with pytest.raises(ValueError, match="a: checksum"):
        read_weights(bucket.segment.name, [one, other], RUN_ID)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": 3}, "must be text"),
        ({"dtype": "object"}, "'object' cannot travel"),
        ({"dtype": ["float32"]}, "cannot travel"),
        ({"dtype": "float64"}, "24 bytes are not those of float64"),
        ({"shape": [2, -3]}, "must be counts"),
        ({"shape": [2, 3.0]}, "must be counts"),
        ({"shape": "23"}, "must be counts"),
        ({"shape": [2, 4]}, "24 bytes are not those of float32"),
        ({"offset": -64}, "must be counts"),
        ({"offset": True}, "must be counts"),
        ({"offset": 1 << 40}, "ends beyond"),
        ({"checksum": None}, "must be text"),
        ({"checksum": "0" * 32}, "a: checksum"),
        ({"extra": 1}, "must have the keys"),
    ],
)
def test_a_record_that_is_wrong_is_refused(sent, change, told):
    sent["tensors"][0].update(change)
    with pytest.raises(ValueError, match=told):
        _read(sent)


@pytest.mark.parametrize("tensors", [None, {}, "a", [None], [[]], [{}]])
def test_tensors_that_are_none_are_refused(sent, tensors):
    with pytest.raises(ValueError, match=r"must be a list|must have the keys"):
        read_weights(sent["segment"], tensors, RUN_ID)


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "vime-",
        "psm_1234",
        "/etc/passwd",
        "../etc/passwd",
        f"vime-{RUN_ID}-/../../etc/passwd",
        f"vime-{RUN_ID}-x/y",
        f"vime-{RUN_ID}",
        f"vime-{RUN_ID}x-weights",
        "vime-other-weights-0",
        f"vime-{RUN_ID}-x\n",
    ],
)
def test_a_name_that_is_no_segment_of_the_run_is_refused(name):
    with pytest.raises(ValueError, match=f"is no segment of run {RUN_ID}"):
        read_weights(name, [], RUN_ID)


def test_only_plain_files_are_read():
    name = f"vime-{RUN_ID}-{secrets.token_hex(4)}"
    path = FOLDER / name
    with pytest.raises(ValueError, match=r"cannot be opened.*share a node"):
        read_segment(name)
    path.symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="cannot be opened"):
        read_segment(name)
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match="no plain file"):
        read_segment(name)
    path.rmdir()
    path.touch()
    with pytest.raises(ValueError, match="is empty"):
        read_segment(name)
    path.unlink()
