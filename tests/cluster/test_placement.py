"""Who goes where, on one node and on several."""

import pytest

from vime_core.cluster.hosts import interface_of, loopback_identity, memory_identity
from vime_core.cluster.placement import MARK_SHARE, BundleLayout, NodeMarks, Placement
from vime_core.errors import ResourceError


def node(alive=True, **resources):
    return {"Alive": alive, "Resources": resources}


def placed(layout, nodes, resource="CPU", **marks):
    """A placement as if Ray had granted it on these nodes, one name a bundle."""
    placement = Placement(layout, resource, NodeMarks(**marks))
    placement._nodes = nodes
    return placement


def test_disjoint_bundles_are_not_shared():
    layout = BundleLayout(ranks=2, engines=2, devices_per_engine=2, shared=False)
    assert layout.bundles == 6
    assert [list(layout.engine_bundles(engine)) for engine in range(2)] == [[2, 3], [4, 5]]


def test_bundles_ask_for_the_mark_of_their_part():
    placement = Placement(BundleLayout(1, 1, 1, shared=False), "GPU", NodeMarks(trainer="big", engines="small"))
    assert [placement._bundle(index) for index in range(2)] == [
        {"CPU": 1.0, "GPU": 1.0, "big": MARK_SHARE},
        {"CPU": 1.0, "GPU": 1.0, "small": MARK_SHARE},
    ]
    assert Placement(BundleLayout(1, 1, 1), "CPU")._bundle(0) == {"CPU": 1.0}


def test_devices_are_numbered_on_each_node():
    placement = placed(BundleLayout(3, 1, 2, shared=False), ["a", "b", "a", "b", "b"])
    assert [placement.positions([rank]) for rank in range(3)] == [[0], [0], [1]]
    assert placement.positions(range(3, 5)) == [1, 2]


def test_an_engine_over_two_nodes_is_refused():
    with pytest.raises(ResourceError, match=r"engine 0 needs rollout\.tensor_parallel_size=2 GPU of one node, and Ray"):
        placed(BundleLayout(1, 1, 2), ["a", "b"], "GPU")._check_engines()
    placed(BundleLayout(1, 1, 2), ["a", "a"], "GPU")._check_engines()


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([node(CPU=9, big=1)], "needs 2 CPU .* and nodes with the resource small have 0"),
        ([node(CPU=9, big=1), node(CPU=1, small=1)], "needs 2 CPU .* and nodes with the resource small have 1"),
        ([node(CPU=9, big=1), node(alive=False, CPU=9, small=1)], "nodes with the resource small have 0"),
        ([node(CPU=9, small=1)], "needs 1 CPU .* and nodes with the resource big have 0"),
    ],
)
def test_too_few_devices_of_marked_nodes_are_told(nodes, told):
    placement = Placement(BundleLayout(1, 2, 1, shared=False), "CPU", NodeMarks(trainer="big", engines="small"))
    with pytest.raises(ResourceError, match=told):
        placement._check_devices(nodes)


def test_enough_devices_are_enough():
    Placement(BundleLayout(1, 2, 1, shared=False), "CPU", NodeMarks(engines="small"))._check_devices(
        [node(CPU=1), node(CPU=2, small=1)]
    )


def test_identities_tell_what_is_shared(tmp_path):
    assert memory_identity() == memory_identity()
    assert memory_identity() != memory_identity(tmp_path)
    assert loopback_identity() == loopback_identity()


def test_an_address_has_an_interface():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None
