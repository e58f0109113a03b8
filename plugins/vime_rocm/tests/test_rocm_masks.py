import ast
import importlib.util
import os
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.accelerators.visible import Pools, plan_children
from vime_core.config.schema import AcceleratorConfig
from vime_core.errors import ResourceError
from vime_rocm import accelerator as rocm
from vime_rocm.masks import CUDA, HIP, ROCM_VISIBILITY, ROCR, rocm_devices


@st.composite
def subsets(draw, count):
    return draw(st.permutations(range(count)))[: draw(st.integers(1, count))]


@st.composite
def inherited(draw):
    """(installed GPUs, environment) of a node whose masks do not contradict each other."""
    installed = draw(st.integers(1, 8))
    environment = {}
    count = installed
    if draw(st.booleans()):
        low = draw(subsets(installed))
        environment[ROCR] = ",".join(map(str, low))
        count = len(low)
    for variable in draw(st.sampled_from([(), (HIP,), (CUDA,), (HIP, CUDA)])):
        mask = environment.get(HIP) or ",".join(map(str, draw(subsets(count))))
        environment[variable] = mask
    return installed, environment


pools = st.builds(
    Pools,
    ranks=st.integers(1, 10),
    engines=st.integers(0, 5),
    engine_devices=st.integers(1, 4),
    colocated=st.booleans(),
)


def physical_devices(environment, installed):
    """What HIP enumerates, as devices of the kernel: ROCr masks first, HIP numbers what is left and masks that."""
    kernel = list(range(installed))
    low = [kernel[int(index)] for index in environment[ROCR].split(",")] if ROCR in environment else kernel
    mask = environment.get(HIP) or environment.get(CUDA)
    return [low[int(index)] for index in mask.split(",")] if mask else low


def vllm_mask_check():
    """The function with which vLLM checks the masks when it is imported on ROCm, without importing vLLM."""
    source = Path(importlib.util.find_spec("vllm").origin).parent / "platforms" / "rocm.py"
    [function] = [
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "_sync_hip_cuda_env_vars"
    ]
    namespace = {"os": os}
    exec(compile(ast.Module([function], []), str(source), "exec"), namespace)
    return namespace["_sync_hip_cuda_env_vars"]


def fits(pools, nodes):
    counts = [len(node.entries) for node in nodes]
    if pools.colocated:
        return sum(counts) >= pools.ranks and sum(n // pools.engine_devices for n in counts) >= pools.engines
    left = pools.ranks
    free = []
    for count in counts:
        free.append(max(0, count - left))
        left = max(0, left - count)
    return left == 0 and sum(n // pools.engine_devices for n in free) >= pools.engines


@settings(max_examples=300, deadline=None)
@given(pools, st.lists(inherited(), min_size=1, max_size=3))
def test_who_must_share_a_device_does_and_nobody_else(pools, given_nodes):
    nodes = [rocm_devices(env, count, f"node{index}") for index, (count, env) in enumerate(given_nodes)]
    if not fits(pools, nodes):
        with pytest.raises(ResourceError, match=r"the run needs \d+ devices"):
            plan_children(pools, nodes, ROCM_VISIBILITY)
        return
    children = plan_children(pools, nodes, ROCM_VISIBILITY)
    assert len(children) == pools.ranks + pools.engines
    owners = {}
    for child in children:
        installed, environment = given_nodes[int(child.node.removeprefix("node"))]
        seen = physical_devices(child.environment, installed)
        offered = physical_devices(environment, installed)
        assert sorted(seen) == sorted(offered), "as many as every other process of the node, and none that is masked"
        own = seen[: len(child.devices)]
        assert own == [offered[position] for position in child.devices], "its own come first"
        for place, device in enumerate(own):
            owners.setdefault((child.node, device), []).append((child.process, place))
    for sharing in owners.values():
        ranks = [process for process, _ in sharing if process.startswith("trainer")]
        engines = [(process, place) for process, place in sharing if process.startswith("engine")]
        assert len(ranks) <= 1
        assert len(engines) <= 1
        if ranks and engines:
            [(engine, place)] = engines
            rank = int(ranks[0].split()[-1])
            assert pools.colocated
            assert (rank // pools.engine_devices, rank % pools.engine_devices) == (int(engine.split()[-1]), place)
    if pools.colocated:
        shared = sum(len(sharing) == 2 for sharing in owners.values())
        assert shared == min(pools.ranks, pools.engines * pools.engine_devices)


@settings(max_examples=100, deadline=None)
@given(pools, inherited())
def test_ray_and_vllm_take_every_environment_as_it_is(pools, node):
    from ray._private.accelerators.amd_gpu import AMDGPUAcceleratorManager

    installed, environment = node
    devices = rocm_devices(environment, installed)
    if not fits(pools, [devices]):
        return
    check = vllm_mask_check()
    for child in plan_children(pools, [devices], ROCM_VISIBILITY):
        with mock.patch.dict(os.environ, {**environment, **child.environment}, clear=True):
            before = dict(os.environ)
            mask = before[HIP].split(",")
            assert AMDGPUAcceleratorManager.get_current_process_visible_accelerator_ids() == mask
            AMDGPUAcceleratorManager.set_current_process_visible_accelerator_ids(["0"])
            check()
            assert os.environ == before


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({HIP: "0,1", CUDA: "1,0"}, "HIP_VISIBLE_DEVICES=0,1 and CUDA_VISIBLE_DEVICES=1,0 differ"),
        ({HIP: ""}, "HIP_VISIBLE_DEVICES= hides every device"),
        ({CUDA: "-1"}, "CUDA_VISIBLE_DEVICES=-1 hides every device"),
        ({HIP: "0,0"}, "HIP_VISIBLE_DEVICES=0,0 lists a device twice"),
        ({HIP: "0;1"}, "HIP_VISIBLE_DEVICES=0;1: '0;1' is no device; list numbers from 0, separated by commas"),
        ({HIP: "GPU-ab12"}, "HIP_VISIBLE_DEVICES=GPU-ab12: 'GPU-ab12' is no device"),
        ({HIP: "8"}, "HIP_VISIBLE_DEVICES=8: there is no device 8; this node has 0 to 7"),
        ({ROCR: "3,9"}, "ROCR_VISIBLE_DEVICES=3,9: there is no device 9; this node has 0 to 7"),
        (
            {ROCR: "6,7", HIP: "6,7"},
            "HIP_VISIBLE_DEVICES=6,7: there is no device 6; ROCR_VISIBLE_DEVICES=6,7, which HIP numbers anew, has 0 "
            "to 1",
        ),
        ({ROCR: "1", CUDA: "1"}, "there is no device 1; ROCR_VISIBLE_DEVICES=1, which HIP numbers anew, has only 0"),
    ],
)
def test_a_conflict_is_one_line_that_names_the_variable(environment, told):
    with pytest.raises(ResourceError) as caught:
        rocm_devices(environment, 8)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_masks_of_rocr_may_be_identifiers():
    node = rocm_devices({ROCR: "GPU-6d2f,GPU-77a1"}, 8)
    assert node.entries == ("0", "1")
    assert node.inherited == {ROCR: "GPU-6d2f,GPU-77a1"}


def test_a_run_inherits_the_masks_of_its_shell(monkeypatch):
    monkeypatch.setattr(rocm, "installed_gpus", lambda: 8)
    monkeypatch.setenv(HIP, "6,7")
    monkeypatch.delenv(CUDA, raising=False)
    accelerator = rocm.RocmAccelerator(AcceleratorConfig())
    assert accelerator.child_environment([1], 2)[CUDA] == "7,6"
    with pytest.raises(ResourceError, match="to have device 2, and this node offers 2"):
        accelerator.child_environment([2], 2)


def test_ray_finds_the_masks_that_it_asks_for(monkeypatch):
    monkeypatch.setattr(rocm, "installed_gpus", lambda: 8)
    monkeypatch.delenv(HIP, raising=False)
    monkeypatch.delenv(CUDA, raising=False)
    monkeypatch.setenv(ROCR, "4,5")
    environment = rocm.RocmAccelerator(AcceleratorConfig()).ray_environment()
    assert (environment[HIP], environment[CUDA], environment[ROCR]) == ("0,1", "0,1", "4,5")
    assert environment["RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES"] == "1"
