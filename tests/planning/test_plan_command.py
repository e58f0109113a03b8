"""`vime plan` as it is typed, for the experiments that are shipped."""

import json
import subprocess
import sys

import pytest

from vime_core.accelerators.visible import Pools, plan_children
from vime_core.cli import main
from vime_core.config.location import conf_folder
from vime_core.errors import ResourceError
from vime_core.loop import memory_check
from vime_core.planning.devices import KNOWN
from vime_rocm.masks import ROCM_VISIBILITY, rocm_devices

DENSE = "experiment=qwen3_8b_dapo_mi355x"
SPARSE = "experiment=qwen3_30b_a3b_dapo_mi300x"
KNOWN_8B = conf_folder() / "models" / "Qwen3-8B" / "config.json"
MASKS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def without_masks(monkeypatch):
    for name in MASKS:
        monkeypatch.delenv(name, raising=False)


def planned(capsys, *arguments):
    status = main(["plan", "--json", *arguments])
    content = json.loads(capsys.readouterr().out)
    assert status == (0 if content["fits"] else 1)
    return content


def totals(content):
    return {phase["name"]: phase["total"] for phase in content["phases"]}


def test_the_published_setting(capsys):
    content = planned(capsys, DENSE)
    assert content["fits"]
    assert content["layout"]["description"] == "TP2+SP DP1, recompute full"
    parts = {part["name"]: part["bytes"] for part in content["phases"][0]["parts"]}
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (8191043584, 16382087168, 49146261504)
    at_tp1 = {item["layout"]["tensor"]: item for item in content["other_layouts"]}[1]
    assert at_tp1["fits"]
    assert at_tp1["phases"][0]["total"] - totals(content)["backward pass"] > 3 * 8191043584
    fitting = {item["what"]: item["fits"] for item in content["other_devices"]}
    assert (fitting["2x MI300X"], fitting["2x H100"]) == (True, False)


def test_the_published_setting_on_two_h100(capsys):
    content = planned(capsys, DENSE, "--device", "h100")
    assert content["problems"][0].startswith("optimizer step needs 89.2 GiB and there are 79.6 GiB")
    more = content["remedies"][0]
    assert (more["devices"], more["layout"]["tensor"], more["fits"]) == (4, 1, True)
    assert more["what"] == (
        "train.world_size=4 train.tensor_parallel=1 train.pipeline_parallel=2 rollout.num_engines=2 (4 devices)"
    )
    again = planned(capsys, DENSE, "--device", "h100", *more["what"].split()[:3])
    assert again["fits"], "what is told works"
    assert content["placement"] == [], "another accelerator's"


def test_thirty_billion_parameters_on_eight_mi300x(capsys):
    content = planned(capsys, SPARSE)
    assert content["fits"]
    assert content["layout"]["expert"] == 8
    assert content["least_tensor_parallel"]["layout"]["tensor"] == 1


def test_the_page_shows_each_part(capsys):
    assert main(["plan", DENSE]) == 0
    page = capsys.readouterr().out
    for part in ("weights", "gradients", "optimizer", "activations", "logits chunk", "engine weights", "KV cache"):
        assert f"\n{part}" in page
    assert "it fits" in page
    assert "models/Qwen3-8B is not here: the published configuration of Qwen3-8B" in page
    assert not any(line.endswith(" ") for line in page.splitlines())


def test_masks_of_the_shell_are_planned_with(capsys, monkeypatch):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "6,7")
    seen = {item["process"]: item["environment"]["HIP_VISIBLE_DEVICES"] for item in planned(capsys, DENSE)["placement"]}
    assert seen == {"trainer rank 0": "6,7", "trainer rank 1": "7,6", "engine 0": "6,7"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert main(["plan", DENSE]) == 2
    assert "HIP_VISIBLE_DEVICES=6,7 and CUDA_VISIBLE_DEVICES=0,1 differ" in capsys.readouterr().err


def test_a_laptop_plans_too(capsys, tmp_path):
    config = {**json.loads(KNOWN_8B.read_text()), "num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 260}
    config |= {"eos_token_id": 1, "bos_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    content = planned(capsys, f"model.path={tmp_path}", "hardware=cpu", "train.max_tokens_per_device=256")
    assert content["fits"]
    assert [phase["name"] for phase in content["phases"]] == ["the whole run"]


def test_a_model_that_nobody_knows(capsys, tmp_path):
    assert main(["plan", DENSE, f"model.path={tmp_path}/none"]) == 2
    assert "has no config.json; give a model folder, or a name that vime knows: Qwen3-30B-A3B, Qwen3-8B" in (
        capsys.readouterr().err
    )


def test_a_device_that_is_not_named(capsys, tmp_path):
    assert main(["plan", DENSE, "accelerator.device=null"]) == 2
    assert "say which device to plan for with --device mi300x or mi325x" in capsys.readouterr().err


class Inputs:
    """What `check_memory` reads."""

    def __init__(self, composed, architecture, accelerator):
        self.composed, self.config, self.model = composed, composed.config, architecture
        self.accelerator, self.record = accelerator, None


class Device:
    ray_resource = "GPU"

    def __init__(self, memory):
        self._memory = memory

    def memory(self):
        return self._memory, self._memory


def test_a_run_that_cannot_fit_does_not_start():
    from vime_core.cli.plan import _architecture
    from vime_core.config.compose import compose

    def check(memory, *overrides):
        composed = compose([DENSE, *overrides], require_available=False)
        model, _ = _architecture(composed)
        memory_check.check_memory(Inputs(composed, model, Device(memory)))

    check(KNOWN["mi355x"].memory)
    check(KNOWN["h100"].memory, "run.check_memory=false")
    with pytest.raises(ResourceError) as caught:
        check(KNOWN["h100"].memory)
    told = str(caught.value)
    assert told.startswith("the run does not fit into memory of each device: optimizer step needs 89.2 GiB")
    assert "vime plan with the same settings" in told


def rows(pools, *nodes):
    """Process, node, HIP mask."""
    children = plan_children(pools, nodes, ROCM_VISIBILITY)
    return [f"{child.process}  {child.node}  {child.environment['HIP_VISIBLE_DEVICES']}" for child in children]


def test_the_tables_of_the_documentation():
    """docs/how-to/amd.md shows these; a change of the plan changes the page."""
    page = (KNOWN_8B.parents[3] / "docs" / "how-to" / "amd.md").read_text()
    eight = rocm_devices({}, 8, "node0")
    tables = [
        rows(Pools(ranks=8, engines=4, engine_devices=2, colocated=True), eight),
        rows(Pools(ranks=6, engines=1, engine_devices=2, colocated=False), eight),
        rows(
            Pools(ranks=4, engines=2, engine_devices=2, colocated=True),
            rocm_devices({}, 2, "node0"),
            rocm_devices({}, 2, "node1"),
        ),
        rows(
            Pools(ranks=2, engines=1, engine_devices=2, colocated=True),
            rocm_devices({"HIP_VISIBLE_DEVICES": "6,7"}, 8, "node0"),
        ),
    ]
    for table in tables:
        assert "\n".join(table) in page, "\n".join(table)


def test_planning_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from vime_core.cli import main\n"
        f"assert main(['plan', {DENSE!r}]) == 0\n"
        "heavy = {'torch', 'ray', 'vllm', 'megatron', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
