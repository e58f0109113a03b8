"""Room in /dev/shm: by arithmetic, and by what this machine has."""

import math
from dataclasses import replace

import pytest

from vime_core.config.compose import compose
from vime_core.errors import ResourceError
from vime_core.loop.shared_memory import check_one_memory, check_shared_memory, weights_in_flight
from vime_core.models.hf import inspect_model
from vime_core.models.tensors import tensor_shapes
from vime_core.testing.models import TinyFamily, write_tiny_model
from vime_core.testing.tokenizers import write_byte_tokenizer
from vime_core.types import NodePlace


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    write_byte_tokenizer(folder)
    return inspect_model(folder, {"tiny": TinyFamily()})


def check(model, *overrides):
    settings = ["model.path=/m", "data.train=/d", "hardware=cpu", "sync=shm", "cluster.object_store_mib=80"]
    composed = compose([*settings, *overrides])
    check_shared_memory(composed.config, composed.components, model)


def test_no_more_is_in_flight_than_a_bucket_nor_than_all_weights(model):
    sizes = [4 * math.prod(shape) for shape in tensor_shapes(model.geometry, model.tensor_map).values()]
    assert weights_in_flight(model, "float32", 1 << 40) == sum(sizes)
    assert weights_in_flight(model, "bfloat16", 1 << 40) == sum(sizes) // 2
    assert weights_in_flight(model, "float32", 1) == min(2 * max(sizes), sum(sizes))
    deep = replace(model, geometry=replace(model.geometry, num_layers=1000))
    assert weights_in_flight(deep, "float32", 1 << 20) == 1 << 20


def test_an_object_store_that_does_not_fit(model):
    check(model)
    with pytest.raises(
        ResourceError, match=r"needs 900000001 \(900000000 MiB by cluster\.object_store_mib, 1 MiB by sync"
    ):
        check(model, "cluster.object_store_mib=900000000")
    check(model, "cluster.object_store_mib=900000000", "cluster.address=127.0.0.1:1", "placement=disjoint")


def test_engines_on_another_host_are_refused_where_weights_wait_in_shared_memory():
    here, there = NodePlace("10.0.0.1", "k", "boot1:1f"), NodePlace("10.0.0.2", "k", "boot2:1f")
    entries = {
        name: compose(["model.path=/m", "data.train=/d", "hardware=cpu", *more]).components["sync"].entry
        for name, more in {"shm": ["sync=shm"], "none": ["sync=none", "rollout=replay", "rollout.path=/r"]}.items()
    }
    check_one_memory(entries["shm"], here, {"engine-0": here, "engine-1": replace(here, address="10.0.0.3")})
    check_one_memory(entries["none"], here, {"engine-0": there})
    with pytest.raises(
        ResourceError, match=r"^sync=shm .* and engine-1, on the node at 10\.0\.0\.2, .* rank 0, at 10\.0\.0\.1 \(or"
    ):
        check_one_memory(entries["shm"], here, {"engine-0": here, "engine-1": there})


def test_weights_that_do_not_fit(model):
    rules = [replace(rule, hf_shapes=((10**7, 10**7),) * len(rule.hf_shapes)) for rule in model.tensor_map]
    with pytest.raises(ResourceError, match=r"or lower cluster\.object_store_mib or sync\.bucket_mib$"):
        check(replace(model, tensor_map=rules), "sync.bucket_mib=900000000000")
    check(replace(model, tensor_map=rules), "rollout=replay", "rollout.path=/r", "sync=none")
