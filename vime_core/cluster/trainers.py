"""The ranks of the trainer: one Ray actor each, called together."""

from __future__ import annotations

import datetime
import logging
import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.accelerators.network import collective_environment
from vime_core.cluster.calls import gather
from vime_core.cluster.hosts import interface_of
from vime_core.cluster.keeper import KeeperClient
from vime_core.cluster.nodes import differences
from vime_core.cluster.witness import Vital
from vime_core.errors import PluginError, TrainerError
from vime_core.log import log_to
from vime_core.plugins.interfaces import TrainContext
from vime_core.plugins.manager import load_plugins
from vime_core.randomness import seed_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import ray
    from torch.distributed import TCPStore

    from vime_core.config.schema import AcceleratorConfig, AlgorithmConfig, DeadlineConfig, SyncConfig, TrainConfig
    from vime_core.models.geometry import ModelGeometry, TensorRule
    from vime_core.plugins.interfaces import Algorithm, SyncStrategy, TrainBackend
    from vime_core.types import (
        EngineEndpoint,
        Float32Array,
        MicroBatch,
        NodePlace,
        PushReport,
        UpdateBatch,
        UpdateReport,
    )

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """What every rank is built from: names and settings, no code."""

    train: TrainConfig
    algorithm: AlgorithmConfig
    sync: SyncConfig
    accelerator: AcceleratorConfig
    model_path: Path
    geometry: ModelGeometry
    tensor_map: Sequence[TensorRule]
    temperature: float
    keep_reference: bool
    total_updates: int
    seed: int
    threads: int
    blocked_plugins: tuple[str, ...]
    plugin_versions: Mapping[str, tuple[str, str]]
    """Plugin -> (distribution, version) as the driver sees them."""
    places: Sequence[NodePlace]
    """One a rank."""
    deadlines: DeadlineConfig
    log_file: Path | None = None
    """Gets a line for each event of a rank, see `vime_core.log`."""


class TrainWorker:
    """One rank. Runs inside a Ray actor; every method but `check_plugins`, `place` and `prepare` is collective."""

    def __init__(self, spec: TrainerSpec, rank: int) -> None:
        self._spec = spec
        self._rank = rank
        self._plugins = load_plugins(spec.blocked_plugins)
        self._store: Any = None
        self._logging = ExitStack()
        if spec.log_file is not None:
            self._logging.enter_context(log_to(spec.log_file, f"trainer rank {rank}"))
        self._algorithm: Algorithm
        self._backend: TrainBackend
        self._sync: SyncStrategy

    def check_plugins(self) -> None:
        """Compare plugins and versions with those of the driver; not in the constructor, whose errors Ray rewrites.

        Raises:
            PluginError: tells each difference.
        """
        if told := differences(self._spec.plugin_versions, self._plugins.versions(), "rank"):
            raise PluginError(f"trainer rank {self._rank} sees other plugins than the driver: {told}")

    def place(self) -> tuple[str, int]:
        """Ray node id and process id."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def prepare(self) -> tuple[str, int]:
        """Address at which rank 0 lets the others meet; other ranks need not be asked."""
        host = self._spec.places[self._rank].address
        self._store = _store_at(host, self._spec.train.world_size)
        return host, self._store.port

    def start(self, host: str, port: int) -> tuple[int, int]:
        """Join the other ranks, build model and optimizer.

        Returns:
            (rank, size) among the data-parallel ranks.
        """
        from torch import distributed

        spec = self._spec
        _settle(spec.places[self._rank])
        accelerator = self._plugins.select("accelerator", spec.accelerator.name).load()(spec.accelerator)
        accelerator.prepare_process(spec.threads)
        timeout = datetime.timedelta(seconds=spec.deadlines.train)
        if self._store is None:
            self._store = distributed.TCPStore(host, port, spec.train.world_size, is_master=False, timeout=timeout)
        distributed.init_process_group(
            accelerator.torch_backend,
            store=self._store,
            rank=self._rank,
            world_size=spec.train.world_size,
            timeout=timeout,
        )
        seed_process(spec.seed + self._rank)
        self._algorithm = self._plugins.select("algorithm", spec.algorithm.name).load()(spec.algorithm)
        context = TrainContext(
            rank=self._rank,
            world_size=spec.train.world_size,
            config=spec.train,
            model_path=spec.model_path,
            geometry=spec.geometry,
            tensor_map=spec.tensor_map,
            accelerator=accelerator,
            device=accelerator.device(0),
            temperature=spec.temperature,
            keep_reference=spec.keep_reference,
            total_updates=spec.total_updates,
            seed=spec.seed,
        )
        self._backend = self._plugins.select("training backend", spec.train.name).load()(context)
        self._backend.start()
        strategy = self._plugins.select("sync strategy", spec.sync.name).load()
        self._sync = strategy(spec.sync, self._rank, spec.train.world_size)
        log.info("ready as process %d", os.getpid())
        return self._backend.data_parallel()

    def logprobs(self, micro_batches: Sequence[MicroBatch], reference: bool) -> list[Float32Array]:
        """See `TrainBackend.logprobs`."""
        return self._backend.logprobs(micro_batches, reference=reference)

    def update(self, batch: UpdateBatch) -> UpdateReport:
        """See `TrainBackend.update`."""
        return self._backend.update(batch, self._algorithm)

    def connect(self, endpoints: Sequence[EngineEndpoint]) -> None:
        """See `SyncStrategy.connect`."""
        self._sync.connect(endpoints)

    def push(self, version: int) -> PushReport | None:
        """Stream the weights into the engines."""
        report = self._sync.push(self._backend.weights(), version)
        if report is not None:
            log.info("pushed version %d: %d tensors, %d bytes", version, report.tensors, report.bytes)
        return report

    def save(self, folder: Path) -> None:
        """See `TrainBackend.save`."""
        self._backend.save(folder)
        log.info("saved to %s", folder)

    def load(self, folder: Path) -> None:
        """See `TrainBackend.load`."""
        self._backend.load(folder)
        log.info("loaded %s", folder)

    def sleep(self) -> None:
        """See `TrainBackend.sleep`."""
        self._backend.sleep()

    def wake(self) -> None:
        """See `TrainBackend.wake`."""
        self._backend.wake()

    def close(self) -> None:
        """Release buffers and process groups."""
        from torch import distributed

        self._sync.close()
        self._backend.close()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        log.info("ends")
        self._logging.close()
        # Ray ends this process now, and would tell the user of its death, should the keeper come first.
        KeeperClient(self._spec.places[self._rank].keeper).forget_process(os.getpid())


def _settle(place: NodePlace) -> None:
    """Make the node's keeper end this process too, and collectives go over the network of the other ranks."""
    # A Ray worker that was stopped outlives its job.
    KeeperClient(place.keeper).register_process(os.getpid())
    interface = interface_of(place.address)
    for name, value in (collective_environment(interface) if interface else {}).items():
        os.environ.setdefault(name, value)


def _store_at(host: str, world_size: int) -> TCPStore:
    """The store at which ranks meet. It lets anyone in, and left to itself it listens on every address of the node."""
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    port = listener.getsockname()[1]
    return TCPStore(host, port, world_size, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


class TrainerGroup:
    """All ranks, seen from the driver. Every call has a deadline and raises the first cause.

    Args:
        spec: what the ranks are built from.
        options: Ray actor options, one a rank.
    """

    def __init__(self, spec: TrainerSpec, options: Sequence[Mapping[str, Any]]) -> None:
        self._spec = spec
        self._options = options
        self._actors: list[ray.actor.ActorHandle] = []
        self._vitals: dict[str, Vital] = {}
        self._data_ranks: list[int] = []
        self.data_parallel_size = 0

    def start(self) -> None:
        """Start all ranks and wait until each has its model."""
        import ray

        actor = ray.remote(TrainWorker)
        self._actors = [actor.options(**o).remote(self._spec, rank) for rank, o in enumerate(self._options)]
        deadline = self._spec.deadlines.start
        self._call("check_plugins", [()] * len(self._actors), deadline)
        self._watch(self._call("place", [()] * len(self._actors), deadline))
        host, port = gather([self._actors[0].prepare.remote()], self._names(1), what="start", deadline_s=deadline)[0]
        places = self._call("start", [(host, port)] * len(self._actors), deadline)
        self._data_ranks = [rank for rank, _ in places]
        self.data_parallel_size = places[0][1]

    def logprobs(
        self, micro_batches: Sequence[Sequence[MicroBatch]], *, reference: bool = False
    ) -> list[list[Float32Array]]:
        """Log-probs of each data-parallel rank's micro-batches: [rank][micro-batch] -> [T]."""
        arguments = [(micro_batches[rank], reference) for rank in self._data_ranks]
        return self._one_per_data_rank(self._call("logprobs", arguments, self._spec.deadlines.train))

    def update(self, batches: Sequence[UpdateBatch]) -> list[UpdateReport]:
        """One optimizer update; one batch and one report a data-parallel rank."""
        arguments = [(batches[rank],) for rank in self._data_ranks]
        return self._one_per_data_rank(self._call("update", arguments, self._spec.deadlines.train))

    def connect(self, endpoints: Sequence[EngineEndpoint]) -> None:
        """Prepare weight pushes into `endpoints`."""
        self._call("connect", [(endpoints,)] * len(self._actors), self._spec.deadlines.push)

    def push(self, version: int) -> PushReport:
        """Push the weights into the (paused) engines, as policy `version`."""
        reports = self._call("push", [(version,)] * len(self._actors), self._spec.deadlines.push)
        pushed: PushReport = next(report for report in reports if report is not None)
        return pushed

    def save(self, folder: Path) -> None:
        """Write the trainer's state below `folder`."""
        self._call("save", [(folder,)] * len(self._actors), self._spec.deadlines.train)

    def load(self, folder: Path) -> None:
        """Read the trainer's state from `folder`."""
        self._call("load", [(folder,)] * len(self._actors), self._spec.deadlines.train)

    def sleep(self) -> None:
        """Free device memory for the engines."""
        self._call("sleep", [()] * len(self._actors), self._spec.deadlines.train)

    def wake(self) -> None:
        """Undo `sleep`."""
        self._call("wake", [()] * len(self._actors), self._spec.deadlines.train)

    def check(self) -> None:
        """Return at once when all ranks on this node are alive; to be asked regularly.

        Raises:
            TrainerError: names a rank that has ended, or has been stopped for too long.
        """
        for vital in self._vitals.values():
            trouble = vital.trouble()
            if trouble is not None:
                raise TrainerError(trouble)

    def close(self) -> None:
        """Orderly end of all ranks; those that do not follow are killed. Safe after a failed start."""
        import ray

        actors, self._actors = self._actors, []
        refs = [actor.close.remote() for actor in actors]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=self._spec.deadlines.stop)
        for actor in actors:
            ray.kill(actor, no_restart=True)
        vitals, self._vitals = self._vitals, {}
        for vital in vitals.values():
            vital.kill_if_stopped()  # Ray asks processes to end themselves, and reports others that end as failures
            vital.close()

    def _watch(self, places: Sequence[tuple[str, int]]) -> None:
        """Look after the ranks on this node; those on others are missed at the deadline of a call."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        limit = self._spec.deadlines.health
        self._vitals = {
            name: Vital(name, pid, limit)
            for name, (node, pid) in zip(self._names(len(places)), places, strict=True)
            if node == here
        }

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]], deadline_s: float) -> list[Any]:
        refs = [getattr(actor, method).remote(*args) for actor, args in zip(self._actors, arguments, strict=True)]
        return gather(refs, self._names(len(refs)), what=method, deadline_s=deadline_s, vitals=self._vitals)

    def _names(self, count: int) -> list[str]:
        return [f"trainer rank {rank}" for rank in range(count)]

    def _one_per_data_rank(self, results: Sequence[Any]) -> list[Any]:
        # Ranks of one data-parallel replica return the same: the first one speaks for it.
        first = dict(reversed(list(zip(self._data_ranks, results, strict=True))))
        return [first[rank] for rank in range(self.data_parallel_size)]
