import pytest

from examples.quickstart.problems import CARRY_SHARE, HELD_OUT, Problem, split, write_parquet
from vime_core.data.config import FilesConfig
from vime_core.data.prompts import PromptTable
from vime_core.types import Prompt
from vime_math_verifier.contract import verify


def test_no_held_out_problem_is_trained_on_in_either_order(problems):
    training, held_out = problems
    seen = {frozenset((problem.left, problem.right)) for problem in training}
    assert len(held_out) >= HELD_OUT >= 500
    assert not seen & {frozenset((problem.left, problem.right)) for problem in held_out}


def test_no_problem_is_there_twice(problems):
    together = [*problems[0], *problems[1]]
    assert len(set(together)) == len(together)


def test_most_problems_need_a_carry_on_both_sides(problems):
    for side in problems:
        assert sum(problem.carries for problem in side) / len(side) == pytest.approx(CARRY_SHARE, abs=0.05)


def test_all_additions_with_a_carry_are_there(problems):
    carrying = {(a, b) for a in range(10, 100) for b in range(10, 100) if a % 10 + b % 10 > 9}
    assert {(p.left, p.right) for side in problems for p in side if p.carries} == carrying


def test_the_split_is_a_function_of_the_seed():
    assert split(0) == split(0)
    assert split(0) != split(1)


def test_careful_work_shows_the_ones_and_careless_work_forgets_their_carry():
    assert Problem(27, 45).careful_response == "7+5=12\nAnswer: 72"
    assert Problem(27, 45).careless_response == "Answer: 62"
    assert Problem(95, 17).careless_response == "Answer: 102"
    assert Problem(21, 45).careless_response == "Answer: 66"


def test_the_careless_answer_adds_digit_by_digit(problems):
    for problem in problems[0]:
        answer = int(problem.careless_response.removeprefix("Answer: "))
        columns = zip(divmod(problem.left, 10), divmod(problem.right, 10), strict=True)
        assert [answer // 10 % 10, answer % 10] == [sum(column) % 10 for column in columns]
        assert (answer == problem.answer) is not problem.carries


def test_the_reward_accepts_careful_work_and_no_forgotten_carry(problems):
    for problem in problems[1]:
        gold = problem.row()["reward_model"]["ground_truth"]
        assert verify(problem.careful_response, gold).status == "correct"
        careless = verify(problem.careless_response, gold).status
        assert careless == ("wrong" if problem.carries else "correct")


def test_vime_reads_the_data_files(assets, problems):
    from vime_core.data.tokenizer import Tokenizer

    for name, side in zip(("train", "heldout"), problems, strict=True):
        table = PromptTable(
            str(assets / f"{name}.parquet"), FilesConfig(), Tokenizer(assets / "model"), max_prompt_tokens=25
        )
        assert table.report() == {"rows": len(side), "too_long": 0, "kept": len(side), "distinct": len(side)}
        assert [expected(problem) for problem in side] == [seen(table[row]) for row in range(len(table))]


def expected(problem: Problem):
    return f"{problem.left}+{problem.right}", f"{problem.left}+{problem.right}=", str(problem.left + problem.right)


def seen(prompt: Prompt):
    return prompt.id, prompt.messages[-1]["content"], prompt.label


def test_the_same_problems_give_the_same_file(tmp_path, problems):
    for name in ("a", "b"):
        write_parquet(problems[1], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
