"""Whether /dev/shm has room for what a run puts there, and all who look there see the same; asked before a start."""

from __future__ import annotations

import math
import shutil
from typing import TYPE_CHECKING

from vime_core.errors import ResourceError
from vime_core.loop.export import DTYPE_BYTES
from vime_core.models.tensors import tensor_shapes
from vime_core.plugins.entries import SyncStrategyEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.config.schema import Config
    from vime_core.models.hf import LocalModel
    from vime_core.plugins.entries import Entry
    from vime_core.plugins.registration import Registered
    from vime_core.types import NodePlace

FOLDER = "/dev/shm"


def check_shared_memory(config: Config, components: Mapping[str, Registered], model: LocalModel) -> None:
    """Check the room for Ray's object store and for weights on their way.

    Raises:
        ResourceError: tells what there is, what is needed, and which settings need less.
    """
    needs = {}
    if config.cluster.address is None:
        needs["cluster.object_store_mib"] = config.cluster.object_store_mib << 20
    sync = components["sync"].entry
    if isinstance(sync, SyncStrategyEntry) and sync.shared_memory:
        needs["sync.bucket_mib"] = weights_in_flight(model, config.train.dtype, config.sync.bucket_mib << 20)
    free, needed = shutil.disk_usage(FOLDER).free, sum(needs.values())
    if needed > free:
        told = ", ".join(f"{_mib(size)} MiB by {key}" for key, size in needs.items())
        raise ResourceError(
            f"{FOLDER} has {free >> 20} MiB free and the run needs {_mib(needed)} ({told}): enlarge it (containers: "
            f"--shm-size) or lower {' or '.join(needs)}"
        )


def check_one_memory(sync: Entry, trainer: NodePlace, engines: Mapping[str, NodePlace]) -> None:
    """Check that engines see the shared memory that weights wait in.

    Args:
        sync: how weights are pushed.
        trainer: where rank 0 is, which writes them.
        engines: where the others are, by name.

    Raises:
        ResourceError: names an engine that is elsewhere.
    """
    if not (isinstance(sync, SyncStrategyEntry) and sync.shared_memory):
        return
    for name, place in engines.items():
        if place.host != trainer.host:
            raise ResourceError(
                f"sync={sync.name} moves weights through the memory of one host, and {name}, on the node at "
                f"{place.address}, would be on another than trainer rank 0, at {trainer.address} (or in a container "
                "with a /dev/shm of its own): place both on one host, or choose a sync strategy that crosses hosts"
            )


def weights_in_flight(model: LocalModel, dtype: str, bucket: int) -> int:
    """Most bytes of weights that wait in shared memory at one time.

    Two buckets share `bucket` bytes: one is filled while the other is read. A tensor that is larger than one travels
    alone, and no more is needed than all weights take.
    """
    shapes = tensor_shapes(model.geometry, model.tensor_map).values()
    sizes = [math.prod(shape) * DTYPE_BYTES[dtype] for shape in shapes]
    return min(sum(sizes), max(bucket, 2 * max(sizes)))


def _mib(size: int) -> int:
    return math.ceil(size / (1 << 20))
