import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.errors import DataError, RunFolderError
from vime_core.run.rollouts import read_rollouts, write_rollouts
from vime_core.types import Group, Prompt, Sample, Verdict, VersionSpan

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5)
JSON = st.dictionaries(
    TEXT, st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=3))
)
VERDICTS = st.none() | st.builds(
    Verdict,
    score=st.floats(allow_nan=False),
    status=st.sampled_from(["correct", "wrong", "unparseable", "timeout", "error"]),
    extracted=st.none() | TEXT,
    detail=TEXT,
)


@st.composite
def samples(draw, prompt_id, group_id, index):
    response = draw(TOKENS)
    size = len(response)
    middle = draw(st.integers(0, size))
    logprobs = st.lists(st.floats(width=32), min_size=size, max_size=size)
    return Sample(
        prompt_id=prompt_id,
        group_id=group_id,
        index=index,
        prompt_ids=np.array(draw(TOKENS), np.int64),
        response_ids=np.array(response, np.int64),
        loss_mask=np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), np.bool_),
        rollout_logprobs=np.array(draw(logprobs), np.float32),
        finish_reason=draw(st.sampled_from(["stop", "length", "abort"])),
        policy_versions=(VersionSpan(3, 0, middle), VersionSpan(2**40, middle, size)),
        response_text=draw(TEXT),
        verdict=draw(VERDICTS),
        metadata=draw(JSON),
    )


@st.composite
def groups(draw):
    made = []
    for number in range(draw(st.integers(0, 3))):
        prompt = Prompt(
            id=f"prompt-{number}",
            messages=tuple(draw(st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), max_size=2))),
            token_ids=tuple(draw(TOKENS)),
            label=draw(TEXT),
            data_source=draw(TEXT),
            metadata=draw(JSON),
        )
        group_id = f"group-{number}"
        made.append(
            Group(group_id, prompt, [draw(samples(prompt.id, group_id, i)) for i in range(draw(st.integers(1, 3)))])
        )
    return made


def assert_same(read, written):
    assert [(group.id, group.prompt, len(group.samples)) for group in read] == [
        (group.id, group.prompt, len(group.samples)) for group in written
    ]
    pairs = [pair for a, b in zip(read, written, strict=True) for pair in zip(a.samples, b.samples, strict=True)]
    for got, expected in pairs:
        for field in dataclasses.fields(Sample):
            a, b = getattr(got, field.name), getattr(expected, field.name)
            if isinstance(b, np.ndarray):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)
            else:
                assert a == b


@settings(max_examples=40, deadline=None)
@given(groups())
def test_round_trip(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("rollouts") / "step.parquet"
    write_rollouts(path, written, {})
    assert_same(read_rollouts(path), written)


@pytest.fixture
def group():
    def sample(index):
        return Sample(
            prompt_id="p",
            group_id="g",
            index=index,
            prompt_ids=np.array([1, 2]),
            response_ids=np.array([3, 4, 5]),
            loss_mask=np.array([True, False, True]),
            rollout_logprobs=np.array([-0.5, 0.0, -1.0], np.float32),
            finish_reason="stop",
            policy_versions=(VersionSpan(7, 0, 3),),
            response_text="算 = 3",
            verdict=Verdict(0.0, "wrong"),
        )

    return Group("g", Prompt("p", ({"role": "user", "content": "1 + 1"},), (1, 2), "2"), [sample(0), sample(1)])


def test_a_table_that_others_can_read(tmp_path, group):
    write_rollouts(tmp_path / "a.parquet", [group], {("g", 1): np.array([0.1, 0.0, 0.1])})
    first, second = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert first["advantages"] is None
    assert second["advantages"] == [0.1, 0.0, 0.1]
    assert first["score"] == 0.0  # not taken for a missing one
    assert (first["prompt_id"], second["index"], first["response_text"]) == ("p", 1, "算 = 3")
    assert first["policy_versions"] == [{"version": 7, "start": 0, "end": 3}]


def test_numpy_values_in_metadata_become_plain(tmp_path, group):
    group.samples[0].metadata = {"a": np.float64(0.5), "b": np.arange(2)}
    write_rollouts(tmp_path / "a.parquet", [group], {})
    assert read_rollouts(tmp_path / "a.parquet")[0].samples[0].metadata == {"a": 0.5, "b": [0, 1]}


def test_metadata_that_are_not_json_are_named(tmp_path, group):
    group.samples[0].metadata = {"a": object()}
    with pytest.raises(DataError, match="prompt p: metadata must be plain JSON values: object"):
        write_rollouts(tmp_path / "a.parquet", [group], {})


def test_a_write_that_dies_leaves_the_old_file(tmp_path, group, monkeypatch):
    path = tmp_path / "a.parquet"
    write_rollouts(path, [group], {})

    def die(table, where, **_):
        where.write_bytes(b"PAR1 half")
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", die)
    with pytest.raises(RunFolderError, match=r"cannot write .*disk full"):
        write_rollouts(path, [], {})
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]
    assert_same(read_rollouts(path), [group])


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 half")
    for name in ("a", "missing"):
        with pytest.raises(RunFolderError, match=rf"cannot read rollouts .*{name}\.parquet: "):
            read_rollouts(tmp_path / f"{name}.parquet")
