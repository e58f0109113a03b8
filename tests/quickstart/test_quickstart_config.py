from pathlib import Path

import pytest

from examples.quickstart.make_assets import EXPERTS_FOLDER, FOLDER
from examples.quickstart.problems import Problem
from examples.quickstart.summary import GREEDY, SAMPLED
from examples.quickstart.tokenizer import IM_END
from vime_core.config.compose import compose
from vime_core.data.config import FilesConfig
from vime_core.data.prompts import PromptTable
from vime_core.data.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
WORD_PROBLEMS = ROOT / "tests" / "data" / "gsm8k_test_dapo.parquet"


@pytest.mark.parametrize(("name", "folder"), [("quickstart", FOLDER), ("quickstart_moe", EXPERTS_FOLDER)])
def test_the_experiment_is_complete_and_points_at_the_assets(name, folder):
    config = compose([f"experiment={name}"]).config
    assert ROOT / config.model.path == folder / "model"
    assert ROOT / config.data.train == folder / "train.parquet"
    assert {ROOT / heldout.path for heldout in config.evals.values()} == {folder / "heldout.parquet"}
    assert config.run.name == name
    assert config.rollout.num_engines == 2
    assert config.train.dtype == "float32"
    assert config.train.steps <= 150


@pytest.mark.parametrize("name", ["quickstart", "quickstart_moe"])
def test_the_summary_reads_the_experiments_eval_sets(name):
    evals = compose([f"experiment={name}"]).config.evals
    assert {f"eval/{name}/accuracy": heldout.temperature for name, heldout in evals.items()} == {GREEDY: 0, SAMPLED: 1}


def test_settings_can_be_overridden():
    config = compose(["experiment=quickstart", "train.lr=0", "run.seed=2"]).config
    assert (config.train.lr, config.run.seed) == (0, 2)


def test_prompts_and_responses_fit_the_limits(assets, tokenizer):
    rollout = compose(["experiment=quickstart"]).config.rollout
    assert len(tokenizer.encode(Problem(99, 99).careful_response + IM_END)) <= rollout.max_response_tokens
    model = Tokenizer(assets / "model")
    table = PromptTable(str(WORD_PROBLEMS), FilesConfig(), model, max_prompt_tokens=rollout.max_prompt_tokens)
    assert table.report()["too_long"] == 0
    assert len(table) == 1319


def test_the_longest_sequence_fits_the_model(assets):
    import json

    rollout = compose(["experiment=quickstart"]).config.rollout
    config = json.loads((assets / "model" / "config.json").read_text())
    assert rollout.max_prompt_tokens + rollout.max_response_tokens <= config["max_position_embeddings"]
