"""Order, epochs and resumption of the prompt source `files`."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.data.config import FilesConfig
from vime_core.data.files import FileSource
from vime_core.errors import DataError, RunFolderError


@pytest.fixture(scope="module")
def make_source(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")

    def make(count=5, seed=0, text="prompt", own_seed=None, tokenizer=tokenizer, **config):
        path = folder / f"{text}_{count}.jsonl"
        rows = [{"prompt": f"{text} {number}", "label": number, "id": number} for number in range(count)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return FileSource(FilesConfig(train=str(path), seed=own_seed, **config), tokenizer, seed, 1000)

    return make


def test_data_that_cannot_be_read_name_their_key(tokenizer, tmp_path):
    with pytest.raises(DataError, match=r"^data\.train: .*nowhere\.jsonl: no such file$"):
        FileSource(FilesConfig(train=str(tmp_path / "nowhere.jsonl")), tokenizer, 0, 1000)


def ids(prompts):
    return [int(prompt.id) for prompt in prompts]


def test_without_shuffling_the_order_is_that_of_the_file(make_source):
    assert ids(make_source(3, shuffle=False).take(7)) == [0, 1, 2, 0, 1, 2, 0]


def test_each_epoch_holds_every_prompt_once_in_an_order_of_its_own(make_source):
    source = make_source(50)
    epochs = [ids(source.take(50)) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(50))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_order_follows_from_the_seed(make_source):
    assert ids(make_source(50, seed=1).take(120)) == ids(make_source(50, seed=1).take(120))
    assert ids(make_source(50, seed=1).take(50)) != ids(make_source(50, seed=2).take(50))


def test_the_seed_of_the_data_comes_before_that_of_the_run(make_source):
    assert ids(make_source(50, seed=1, own_seed=0).take(50)) == ids(make_source(50, seed=0).take(50))


def test_the_order_does_not_change_with_versions(make_source):
    """Golden: a checkpoint is continued in the order in which it was begun."""
    assert ids(make_source(10, seed=3).take(20)) == [0, 4, 9, 7, 1, 5, 6, 3, 8, 2, 0, 6, 2, 1, 3, 7, 4, 9, 8, 5]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 7),
    shuffle=st.booleans(),
    seed=st.integers(-3, 2**65),
    takes=st.lists(st.tuples(st.integers(0, 15), st.booleans()), max_size=8),
)
def test_any_takes_and_restarts_use_each_prompt_once_an_epoch(make_source, count, shuffle, seed, takes):
    source, taken = make_source(count, seed, shuffle=shuffle), []
    for size, restart in takes:
        if restart:
            state = json.loads(json.dumps(source.state()))
            source = make_source(count, seed, shuffle=shuffle)
            source.restore(state)
        taken += ids(source.take(size))
    assert taken == ids(make_source(count, seed, shuffle=shuffle).take(len(taken)))
    epochs = [taken[start : start + count] for start in range(0, len(taken), count)]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch)
    state = source.state()
    assert (state["epoch"], state["position"]) == divmod(len(taken), count)


def test_at_the_end_of_an_epoch_the_next_one_comes_first(make_source):
    source = make_source(4)
    source.take(4)
    resumed = make_source(4)
    resumed.restore(source.state())
    assert sorted(ids(resumed.take(4))) == [0, 1, 2, 3]
    assert resumed.state()["epoch"] == 2


def test_restoring_goes_back_too(make_source):
    source = make_source(5)
    start = source.state()
    first = ids(source.take(8))
    source.restore(start)
    assert ids(source.take(8)) == first


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"text": "other"}, "fingerprint"),
        ({"count": 6}, "prompts 5 -> 6"),
        ({"seed": 7}, "seed 0 -> 7"),
        ({"shuffle": False}, "shuffle True -> False"),
    ],
)
def test_other_data_or_another_order_is_refused(make_source, change, told):
    state = make_source().state()
    with pytest.raises(RunFolderError, match=told) as caught:
        make_source(**change).restore(state)
    assert "resume.mode=never" in str(caught.value)


def test_another_chat_template_is_refused(make_source, tokenizer_folder, tmp_path):
    from vime_core.data.tokenizer import Tokenizer

    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    with pytest.raises(RunFolderError, match="fingerprint"):
        make_source(tokenizer=Tokenizer(tokenizer_folder, template)).restore(make_source().state())


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({}, "lacks epoch, position, prompts, fingerprint, shuffle, seed"),
        ({"position": 5}, "epoch 0, prompt 5 of 5"),
        ({"epoch": -1}, "epoch -1"),
    ],
)
def test_a_position_that_cannot_be_is_refused(make_source, state, told):
    source = make_source()
    with pytest.raises(RunFolderError, match=told):
        source.restore(source.state() | state if state else state)


def test_the_report_counts_the_rows(make_source):
    assert make_source(5).report() == {"rows": 5, "too_long": 0, "kept": 5, "distinct": 5}
    assert len(make_source(5)) == 5
