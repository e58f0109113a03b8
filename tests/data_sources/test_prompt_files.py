"""What is read from data files, and what is said of a bad one."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vime_core.data.config import FilesConfig
from vime_core.data.prompts import PromptTable
from vime_core.errors import DataError
from vime_core.testing.tokenizers import write_byte_tokenizer

GSM8K = Path(__file__).parents[1] / "data" / "gsm8k_test_dapo.parquet"


def dapo_row(number, **changes):
    row = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": f"Say {number}."}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(number), "style": "rule"},
        "extra_info": {"index": f"row-{number}"},
    }
    return row | changes


def read(path, tokenizer, limit=10_000, rows=None, **keys):
    return PromptTable(str(path), FilesConfig(**keys), tokenizer, max_prompt_tokens=limit, max_rows=rows)


def prompts_of(table):
    return [table[row] for row in range(len(table))]


def test_every_real_problem_is_read_and_makes_the_round_trip(tokenizer):
    source = pq.read_table(GSM8K).to_pylist()
    table = read(GSM8K, tokenizer)
    assert table.report() == {"rows": 1319, "too_long": 0, "kept": 1319, "distinct": 1319}
    for prompt, row in zip(prompts_of(table), source, strict=True):
        assert prompt.id == row["extra_info"]["index"]
        assert prompt.label == row["reward_model"]["ground_truth"]
        assert prompt.data_source == "math_dapo"
        assert list(prompt.messages) == row["prompt"]
        content = row["prompt"][0]["content"]
        text = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
        assert tokenizer.decode(prompt.token_ids, skip_special=False) == text
        assert len(prompt.token_ids) == len(f"user\n{content}\nassistant\n".encode()) + 3


def test_jsonl_and_parquet_hold_the_same(tokenizer, tmp_path, write_jsonl):
    rows = [dapo_row(number) for number in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    from_jsonl, from_parquet = read(write_jsonl(rows), tokenizer), read(tmp_path / "rows.parquet", tokenizer)
    assert prompts_of(from_jsonl) == prompts_of(from_parquet)
    assert from_jsonl.fingerprint == from_parquet.fingerprint


def test_metadata_is_what_else_the_row_held(tokenizer, write_jsonl):
    [prompt] = prompts_of(read(write_jsonl([dapo_row(3)]), tokenizer))
    assert prompt.metadata == {"ability": "MATH", "reward_model": {"style": "rule"}, "extra_info": {"index": "row-3"}}


def test_plain_rows_with_keys_of_ones_own(tokenizer, write_jsonl):
    rows = [
        {"question": "2+2?", "answer": 4, "set": "sums", "uid": 7, "level": 1},
        {"question": [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}], "answer": "0"},
    ]
    keys = {"prompt_key": "question", "label_key": "answer", "source_key": "set", "id_key": "uid"}
    first, second = prompts_of(read(write_jsonl(rows), tokenizer, **keys))
    assert (first.id, first.label, first.data_source, first.metadata) == ("7", "4", "sums", {"level": 1})
    assert list(first.messages) == [{"role": "user", "content": "2+2?"}]
    assert (second.id, second.label, second.data_source) == ("prompts.jsonl:2", "0", "")
    assert [message["role"] for message in second.messages] == ["system", "user"]


def test_a_label_of_zero_is_a_label(tokenizer, write_jsonl):
    [prompt] = prompts_of(read(write_jsonl([{"prompt": "1-1", "label": 0}]), tokenizer))
    assert prompt.label == "0"


def test_blank_lines_are_skipped_and_counted_as_lines(tokenizer, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('\n{"prompt": "a", "label": "1"}\n\n{"prompt": "b", "label": "2"}\n')
    assert [prompt.id for prompt in prompts_of(read(path, tokenizer))] == ["prompts.jsonl:2", "prompts.jsonl:4"]


def test_ids_are_unique_where_rows_share_one(tokenizer, write_jsonl):
    rows = [{"prompt": p, "label": "1", "id": i} for p, i in [("a", "x"), ("b", "x#2"), ("c", "x"), ("d", "x")]]
    ids = [prompt.id for prompt in prompts_of(read(write_jsonl(rows), tokenizer))]
    assert ids == ["x", "x#2", "x#3", "x#4"]


def test_a_repeated_prompt_is_kept_and_told(tokenizer, write_jsonl):
    rows = [{"prompt": "same", "label": label} for label in "122"]
    table = read(write_jsonl(rows), tokenizer)
    assert [prompt.label for prompt in prompts_of(table)] == ["1", "2", "2"]
    assert table.report()["distinct"] == 1


def test_long_prompts_are_left_out_and_counted(tokenizer, write_jsonl):
    path = write_jsonl([{"prompt": "x" * length, "label": "1"} for length in (10, 30, 20)])
    overhead = len(read(path, tokenizer)[0].token_ids) - 10
    table = read(path, tokenizer, limit=overhead + 20)
    assert table.report() == {"rows": 3, "too_long": 1, "kept": 2, "distinct": 2}
    assert [prompt.id for prompt in prompts_of(table)] == ["prompts.jsonl:1", "prompts.jsonl:3"]


def test_only_too_long_prompts_is_an_error(tokenizer, write_jsonl):
    path = write_jsonl([{"prompt": "x" * 50, "label": "1"}])
    with pytest.raises(DataError, match=r"all 1 prompts are longer than rollout.max_prompt_tokens=20 .* raise it"):
        read(path, tokenizer, limit=20)


def test_a_pattern_reads_its_files_in_order_and_each_in_its_format(tokenizer, tmp_path, write_jsonl):
    write_jsonl([{"prompt": "b", "label": "1"}], "part_2.jsonl")
    write_jsonl([dapo_row(1)], "part_1.jsonl")
    ids = [prompt.id for prompt in prompts_of(read(tmp_path / "part_*.jsonl", tokenizer))]
    assert ids == ["row-1", "part_2.jsonl:1"]


def test_only_the_first_rows_are_read(tokenizer, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "label": "1"}\nnot json\n')
    assert read(path, tokenizer, rows=1).report()["rows"] == 1


def test_the_fingerprint_follows_every_part_of_a_prompt(tokenizer, write_jsonl):
    base = {"prompt": "a", "label": "1", "data_source": "s", "id": "i", "level": 1}
    rows = [base, *({**base, key: value} for key, value in base.items() if key != "level")]
    changed = [base | {key: "other"} for key in base]
    prints = [read(write_jsonl([row]), tokenizer).fingerprint for row in [base, *changed]]
    assert len(set(prints)) == len(base) + 1
    assert read(write_jsonl(rows[:1], "moved.jsonl"), tokenizer).fingerprint == prints[0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (dapo_row(1, prompt=None), "line 2: key prompt is missing"),
        (dapo_row(1, prompt=[]), "line 2: key prompt is an empty list"),
        (dapo_row(1, prompt=3), "line 2: key prompt must be text or a list of chat messages, not int"),
        (dapo_row(1, prompt=["hi"]), r"line 2: key prompt[0] must be a message with role and content, not str"),
        (dapo_row(1, prompt=[{"role": "user"}]), r"line 2: key prompt[0].content is missing"),
        (dapo_row(1, prompt=[{"content": "x"}]), r"line 2: key prompt[0].role is missing"),
        (dapo_row(1, prompt=[{"role": "user", "content": 3}]), r"line 2: key prompt[0].content must be text, not int"),
        (dapo_row(1, prompt=[{"role": "user", "content": " \n"}]), "line 2: key prompt is empty"),
        (dapo_row(1, prompt=[{"role": "user", "content": "\ud800"}]), r"key prompt[0].content is not valid Unicode"),
        (dapo_row(1, reward_model=None), "line 2: key reward_model must be an object, not null"),
        (dapo_row(1, reward_model={}), "line 2: key reward_model.ground_truth is missing"),
        (dapo_row(1, reward_model={"ground_truth": ""}), "line 2: key reward_model.ground_truth is empty"),
        (
            dapo_row(1, reward_model={"ground_truth": ["1"]}),
            "reward_model.ground_truth must be text or a number, not list",
        ),
        (
            dapo_row(1, reward_model={"ground_truth": True}),
            "reward_model.ground_truth must be text or a number, not bool",
        ),
        (dapo_row(1, reward_model={"ground_truth": float("nan")}), "must be text or a finite number, not nan"),
        (dapo_row(1, data_source=["a"]), "line 2: key data_source must be text or a number, not list"),
        (dapo_row(1, extra_info="x"), "line 2: key extra_info must be an object, not str"),
        ({"prompt": "plain", "label": "1"}, "line 2: key reward_model must be an object, not null"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_key(tokenizer, write_jsonl, row, message):
    path = write_jsonl([dapo_row(0), row])
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read(path, tokenizer)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plain_row_without_label_is_named(tokenizer, write_jsonl):
    path = write_jsonl([{"prompt": "a", "label": "1"}, {"prompt": "b"}])
    with pytest.raises(DataError, match=r"prompts.jsonl line 2: key label is missing"):
        read(path, tokenizer)


def test_a_bad_parquet_row_is_named_by_its_index(tokenizer, tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([dapo_row(0), dapo_row(1, reward_model={"style": "rule"})]), path)
    with pytest.raises(DataError, match=r"rows.parquet row 1: key reward_model.ground_truth is missing"):
        read(path, tokenizer)


def test_a_file_in_neither_format_lists_its_keys(tokenizer, write_jsonl):
    path = write_jsonl([{"question": "a", "answer": "b"}])
    with pytest.raises(DataError, match=r"data.prompt_key=prompt\); its keys are: question, answer"):
        read(path, tokenizer)


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "line 2: not JSON"), ("[1]", "line 2: a list, must be a JSON object"), ("\udcff", "line 2: not JSON")],
)
def test_a_line_that_is_no_object_is_named(tokenizer, tmp_path, line, message):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "a", "label": "1"}\n' + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(DataError, match=message):
        read(path, tokenizer)


def test_files_that_are_not_there_or_not_data(tokenizer, tmp_path):
    (tmp_path / "prompts.csv").write_text("prompt,label\n")
    (tmp_path / "broken.parquet").write_text("PAR1")
    (tmp_path / "empty.jsonl").write_text("\n")
    for name, message in {
        "none.jsonl": "none.jsonl: no such file",
        "none-*.jsonl": "no such file",
        "/dev/null": "^/dev/null: is no file",
        "prompts.csv": r"unknown extension '.csv'; data files are .parquet or .jsonl",
        "broken.parquet": "broken.parquet: cannot be read as parquet",
        "empty.jsonl": "no rows; a data set needs at least one prompt",
        "": r"is a folder; name a file or a pattern",
    }.items():
        with pytest.raises(DataError, match=message):
            read(tmp_path / name, tokenizer)


def test_a_prompt_that_the_template_refuses_is_named(tmp_path, write_jsonl):
    from vime_core.data.tokenizer import Tokenizer

    template = "{% if messages[0]['content'] == 'bad' %}{{ raise_exception('no') }}{% endif %}x"
    strict = Tokenizer(write_byte_tokenizer(tmp_path / "strict", chat_template=template))
    rows = [{"prompt": text, "label": "1"} for text in ("good", "bad", "good", "bad")]
    with pytest.raises(DataError, match=r"prompts.jsonl line 2: .*refuses the messages: no"):
        read(write_jsonl(rows), strict)
