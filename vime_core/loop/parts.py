"""The running parts of a run: started side by side, ended in reverse order whatever happens."""

from __future__ import annotations

import asyncio
import logging
import secrets
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from vime_core.cluster.keeper import Keeper
from vime_core.cluster.trainers import TrainerGroup, TrainerSpec
from vime_core.cluster.vigil import vigil
from vime_core.loop.cluster import cluster
from vime_core.loop.probe import Probe
from vime_core.loop.training import NoTrainer, Trainer
from vime_core.plugins.discovery import blocked_names
from vime_core.plugins.entries import TrainBackendEntry
from vime_core.plugins.interfaces import RolloutContext
from vime_core.rewards.judge import Judge
from vime_core.rewards.pool import RewardPool
from vime_core.rewards.routing import reward_spec
from vime_core.rollout.collect import Collector
from vime_core.rollout.evaluate import Evaluator
from vime_core.rollout.no_engines import NoEngines
from vime_core.rollout.recorded import RecordedCollector
from vime_core.run.metrics import MetricsWriter
from vime_core.run.progress import Progress
from vime_core.run.report import Reporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from vime_core.cluster.vigil import Vigil
    from vime_core.config.schema import Config
    from vime_core.loop.cluster import Cluster
    from vime_core.loop.inputs import Inputs
    from vime_core.plugins.entries import RewardEntry
    from vime_core.plugins.interfaces import Accelerator, Algorithm, PromptSource, RolloutBackend
    from vime_core.rewards.spec import RewardSpec
    from vime_core.run.checkpoint import CheckpointStore
    from vime_core.run.folder import RunFolder
    from vime_core.run.resume import OpenRun
    from vime_core.types import Prompt

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a loop works with, started."""

    config: Config
    accelerator: Accelerator
    algorithm: Algorithm
    events: asyncio.AbstractEventLoop
    """Runs all that waits for engines and rewards."""
    rollout: RolloutBackend
    collector: Collector | RecordedCollector
    evaluator: Evaluator
    trainers: TrainerGroup
    trainer: Trainer | NoTrainer
    probe: Probe | None
    """None when trainer and engines cannot be compared."""
    folder: RunFolder
    checkpoints: CheckpointStore
    reporter: Reporter
    vigil: Vigil
    """Notices when a part dies."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What marks the processes and shared memory of one run."""

    id: str
    key: str = field(repr=False)
    """Engines and router answer only to who knows it."""

    @classmethod
    def new(cls) -> Identity:
        """Random."""
        return cls(id=secrets.token_hex(4), key=secrets.token_urlsafe(32))


@dataclass(frozen=True, slots=True)
class Machines:
    """The running processes, whatever is done with them."""

    pool: RewardPool
    """Started where something is scored."""
    trainers: TrainerGroup
    rollout: RolloutBackend
    events: asyncio.AbstractEventLoop
    """Runs all that waits for engines and rewards."""
    vigil: Vigil
    """Notices when one dies."""


@contextmanager
def started(inputs: Inputs, run: OpenRun) -> Iterator[Parts]:
    """Start keeper, Ray, trainer, engines and scoring processes; end them all on leaving.

    Raises:
        VimeError: the first cause, when a part does not start.
    """
    with closing(_reporter(inputs, run)) as reporter:
        reporter.note(f"run folder: {run.folder.path}")
        _tell_data(inputs, reporter)
        with machines(inputs, run.folder, reporter.note, scores=inputs.record is None) as running:
            yield _assemble(inputs, run, reporter, running)


@contextmanager
def machines(inputs: Inputs, folder: RunFolder, note: Callable[[str], None], *, scores: bool) -> Iterator[Machines]:
    """Start the processes; end them all on leaving.

    Args:
        inputs: what they are started from.
        folder: gets their logs.
        note: told what is going on.
        scores: whether scoring processes are wanted.

    Raises:
        VimeError: the first cause, when a part does not start, and when one dies later.
    """
    config, identity = inputs.config, Identity.new()
    with ExitStack() as stack:
        keeper = Keeper.start(
            identity.id, folder.logs, log_file=folder.log_file, health_deadline_s=config.deadlines.health
        )
        log.info("watches the run as process %d", keeper.pid, extra={"actor": "keeper"})
        stack.callback(keeper.close, config.deadlines.stop)
        pool = RewardPool(_reward_specs(inputs), config=config.reward_pool)
        stack.callback(pool.close)
        if scores:
            pool.start()
        nodes = stack.enter_context(cluster(inputs, identity.id, keeper.address, folder))
        trainers = _trainers(inputs, nodes, identity, folder.log_file)
        stack.callback(trainers.close)
        rollout = _rollout(inputs, nodes, identity, keeper.address, folder.logs)
        stack.callback(rollout.close)
        note(f"starting {inputs.layout.ranks} trainer ranks and {inputs.layout.engines} engines")
        start_side_by_side([trainers.start, rollout.start])
        events = stack.enter_context(event_loop(config.deadlines.stop))
        watch = stack.enter_context(vigil([keeper.check, nodes.check, trainers.check, rollout.health]))
        yield Machines(pool, trainers, rollout, events, watch)


@contextmanager
def event_loop(stop_deadline_s: float) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop for the driver; what an interrupt left unfinished in it is cancelled before it closes."""
    events = asyncio.new_event_loop()
    try:
        yield events
    finally:
        tasks = asyncio.all_tasks(events)
        for task in tasks:
            task.cancel()
        if tasks:
            done, _ = events.run_until_complete(asyncio.wait(tasks, timeout=stop_deadline_s))
            for task in done:
                if not task.cancelled():
                    # Asked for, so that asyncio does not print it: the first cause is on its way already.
                    task.exception()
        events.close()


def start_side_by_side(starts: Sequence[Callable[[], None]]) -> None:
    """Call all at once and return when all have; the first failure is raised without waiting for the others."""
    executor = ThreadPoolExecutor(len(starts), thread_name_prefix="start")
    futures = [executor.submit(start) for start in starts]
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    executor.shutdown(wait=False)
    for future in done:
        future.result()


def _assemble(inputs: Inputs, run: OpenRun, reporter: Reporter, running: Machines) -> Parts:
    config = inputs.config
    seed, stop_ids = config.run.seed, inputs.model.geometry.eos_token_ids
    judge = Judge(running.pool, config.rewards)
    makers = (inputs.function, running.rollout, judge, inputs.tokenizer)
    trainer = Trainer(running.trainers, inputs.algorithm, config.train) if _trains(inputs) else NoTrainer()
    return Parts(
        config=config,
        accelerator=inputs.accelerator,
        algorithm=inputs.algorithm,
        events=running.events,
        rollout=running.rollout,
        collector=_collector(inputs, running.rollout, judge),
        evaluator=Evaluator(inputs.eval_sets, *makers, config.rollout, seed, stop_ids),
        trainers=running.trainers,
        trainer=trainer,
        probe=_probe(inputs, trainer),
        folder=run.folder,
        checkpoints=run.checkpoints,
        reporter=reporter,
        vigil=running.vigil,
    )


def _trains(inputs: Inputs) -> bool:
    entry = inputs.composed.components["train"].entry
    return isinstance(entry, TrainBackendEntry) and entry.trains


def _collector(inputs: Inputs, rollout: RolloutBackend, judge: Judge) -> Collector | RecordedCollector:
    config, geometry = inputs.config, inputs.model.geometry
    if inputs.record is not None:
        return RecordedCollector(inputs.record, inputs.filters, config.rollout, vocab_size=geometry.vocab_size)
    return Collector(
        cast("PromptSource", inputs.source),
        inputs.function,
        rollout,
        judge,
        inputs.tokenizer,
        inputs.filters,
        config.rollout,
        config.run.seed,
        geometry.eos_token_ids,
    )


def _probe(inputs: Inputs, trainer: Trainer | NoTrainer) -> Probe | None:
    """None where it is not wanted, or where trainer or engines are missing."""
    config = inputs.config
    if not config.sync.probe or inputs.source is None or isinstance(trainer, NoTrainer):
        return None
    return Probe(
        config.sync,
        dtype=config.train.dtype,
        prompt=_peek(inputs.source),
        temperature=config.rollout.temperature,
        seed=config.run.seed,
        max_tokens=config.rollout.max_response_tokens,
        logprobs=trainer.logprobs,
    )


def _peek(source: PromptSource) -> Prompt:
    """The next prompt, which stays the next one."""
    state = source.state()
    [prompt] = source.take(1)
    source.restore(state)
    return prompt


def _tell_data(inputs: Inputs, reporter: Reporter) -> None:
    prompts = {"prompts": inputs.source.report()} if inputs.source is not None else {}
    sets = {**prompts, **{f"held-out {e.name}": e.report for e in inputs.eval_sets}}
    for name, counts in sets.items():
        reporter.note(f"{name}: {', '.join(f'{what} {count}' for what, count in counts.items())}")


def _reporter(inputs: Inputs, run: OpenRun) -> Reporter:
    config, components = inputs.config, inputs.composed.components
    return Reporter(
        MetricsWriter(run.folder.metrics_file),
        Progress(config.train.steps),
        {
            name: partial(components[f"trackers.{name}"].build, settings, run.folder.path)
            for name, settings in config.trackers.items()
        },
        {name: partial(components[f"observers.{name}"].build, settings) for name, settings in config.observers.items()},
    )


def _reward_specs(inputs: Inputs) -> list[RewardSpec]:
    components = inputs.composed.components
    return [
        reward_spec(name, cast("RewardEntry", components[f"rewards.{name}"].entry), settings)
        for name, settings in inputs.config.rewards.items()
    ]


def _trainers(inputs: Inputs, nodes: Cluster, identity: Identity, log_file: Path) -> TrainerGroup:
    config, needs = inputs.config, inputs.algorithm.needs()
    spec = TrainerSpec(
        train=config.train,
        algorithm=config.algorithm,
        sync=config.sync,
        accelerator=config.accelerator,
        model_path=inputs.model.path.absolute(),
        geometry=inputs.model.geometry,
        tensor_map=inputs.model.tensor_map,
        temperature=config.rollout.temperature,
        keep_reference=needs.ref_logprobs,
        total_updates=config.train.steps * needs.updates_per_rollout,
        seed=config.run.seed,
        threads=inputs.threads.trainer,
        blocked_plugins=tuple(sorted(blocked_names(config.plugins.block))),
        plugin_versions=inputs.composed.plugins.versions(),
        places=[nodes.trainer_place(rank) for rank in range(config.train.world_size)],
        deadlines=config.deadlines,
        log_file=log_file,
    )
    marks = {"VIME_RUN_ID": identity.id, "VIME_PUSH_DEADLINE_S": str(config.deadlines.push)}
    return TrainerGroup(spec, [nodes.trainer_options(rank, marks) for rank in range(config.train.world_size)])


def _rollout(inputs: Inputs, nodes: Cluster, identity: Identity, keeper: str, log_folder: Path) -> RolloutBackend:
    config = inputs.config
    if inputs.record is not None:
        return NoEngines()
    engines = range(config.rollout.num_engines)
    context = RolloutContext(
        config=config.rollout,
        model_path=inputs.model.path.absolute(),
        geometry=inputs.model.geometry,
        accelerator=inputs.accelerator,
        sync=config.sync.name,
        dtype=config.train.dtype,
        run_id=identity.id,
        run_key=identity.key,
        seed=config.run.seed,
        threads=inputs.threads.engine,
        engine_options=[nodes.engine_options(engine) for engine in engines],
        engine_places=[nodes.engine_place(engine) for engine in engines],
        keeper=keeper,
        log_folder=log_folder,
        start_deadline=config.deadlines.start,
        generate_deadline=config.deadlines.generate,
        stop_deadline=config.deadlines.stop,
        health_deadline=config.deadlines.health,
    )
    backend: RolloutBackend = inputs.composed.components["rollout"].build(context)
    return backend
