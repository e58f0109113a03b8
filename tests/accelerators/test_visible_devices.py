import pytest

from vime_core.accelerators import cuda
from vime_core.accelerators.cuda import CUDA_VISIBILITY, MASK, cuda_devices
from vime_core.accelerators.visible import Pools, plan_children
from vime_core.config.schema import AcceleratorConfig
from vime_core.errors import ResourceError


def masks(pools, *nodes):
    return {child.process: child.environment[MASK] for child in plan_children(pools, nodes, CUDA_VISIBILITY)}


def test_colocated_ranks_share_the_devices_of_an_engine():
    pools = Pools(ranks=4, engines=2, engine_devices=2, colocated=True)
    assert masks(pools, cuda_devices({}, 8)) == {
        "trainer rank 0": "0",
        "trainer rank 1": "1",
        "trainer rank 2": "2",
        "trainer rank 3": "3",
        "engine 0": "0,1",
        "engine 1": "2,3",
    }


def test_disjoint_pools_share_nothing():
    pools = Pools(ranks=2, engines=2, engine_devices=1, colocated=False)
    assert list(masks(pools, cuda_devices({}, 4)).values()) == ["0", "1", "2", "3"]


def test_an_engine_stays_on_one_node():
    pools = Pools(ranks=4, engines=2, engine_devices=2, colocated=True)
    children = plan_children(pools, [cuda_devices({}, 3, "a"), cuda_devices({}, 3, "b")], CUDA_VISIBILITY)
    assert [(child.node, child.devices) for child in children] == [
        ("a", (0,)),
        ("a", (1,)),
        ("b", (0,)),
        ("b", (1,)),
        ("a", (0, 1)),
        ("b", (0, 1)),
    ]


def test_identifiers_stay_identifiers():
    pools = Pools(ranks=1, engines=1, engine_devices=2, colocated=True)
    node = cuda_devices({MASK: "GPU-5e,GPU-7a,MIG-3b"}, 8)
    assert masks(pools, node) == {"trainer rank 0": "GPU-5e", "engine 0": "GPU-5e,GPU-7a"}


def test_too_few_devices_name_the_settings():
    pools = Pools(ranks=4, engines=2, engine_devices=2, colocated=False)
    with pytest.raises(ResourceError) as caught:
        plan_children(pools, [cuda_devices({}, 6, "node0")], CUDA_VISIBILITY)
    assert str(caught.value) == (
        "the run needs 8 devices (4 trainer ranks, 2 engines of 2, none across nodes) and there are 6 on node0: lower "
        "train.world_size or rollout.num_engines, or let the run see more devices"
    )


def test_a_mask_of_a_device_that_is_not_there_is_refused():
    with pytest.raises(ResourceError, match="CUDA_VISIBLE_DEVICES=2: there is no device 2; this node has 0 to 1"):
        cuda_devices({MASK: "2"}, 2)
    assert cuda_devices({MASK: "2"}, 0).entries == ("2",), "nothing is known of the node"


def test_a_run_inherits_the_mask_of_its_shell(monkeypatch, tmp_path):
    for name in ("0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(cuda, "GPUS", tmp_path)
    monkeypatch.setenv(MASK, "2,0")
    accelerator = cuda.CudaAccelerator(AcceleratorConfig())
    assert accelerator.child_environment([1], 2)[MASK] == "0"
    assert accelerator.ray_environment() == {MASK: "2,0", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
