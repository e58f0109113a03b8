"""The colocated loop: trainer and engines share the devices and take turns."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vime_core.loop.clock import StageClock
from vime_core.randomness import random_state, restore_random_state, seed_process
from vime_core.rewards.failures import check_failures

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from typing import TypeVar

    from vime_core.loop.parts import Parts
    from vime_core.rollout.collect import Collected
    from vime_core.run.checkpoint import Checkpoint
    from vime_core.types import TrainSample

    Result = TypeVar("Result")

log = logging.getLogger(__name__)


class ColocatedLoop:
    """Steps are counted from 1; step 0 is the state before training.

    Args:
        parts: everything a run is made of, started.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._takes_turns = parts.accelerator.can_sleep and parts.config.placement == "colocated"
        self._step = 0
        self._current = 0
        self._version = 0
        self._updates = 0
        self._clock = StageClock(lambda stage: log.info("step %d: %s", self._current, stage))

    def run(self, checkpoint: Checkpoint | None) -> None:
        """From the checkpoint, or from the start, to the last step or to the one after which an observer ends it."""
        last = self._parts.config.train.steps
        self._begin(checkpoint)
        while self._step < last and self._parts.reporter.stop_reason is None:
            self._run_step(self._step + 1)

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        parts = self._parts
        seed_process(parts.config.run.seed)
        if checkpoint is not None:
            self._restore(checkpoint)
        parts.trainers.connect(parts.rollout.endpoints())
        self._push()
        self._probe()
        if checkpoint is not None:
            # Last: the run that was never stopped drew nothing for a start.
            restore_random_state(checkpoint.state["random"])
        elif parts.config.eval.every:
            parts.reporter.log(0, {**self._evaluate(), "sync/policy_version": float(self._version)})
        self._clock.lap()

    def _run_step(self, step: int) -> None:
        parts, clock, self._current = self._parts, self._clock, step
        with clock.stage("rollout"):
            collected = self._await(parts.collector.collect(step, self._version))
        clock.move(collected.score_seconds, source="rollout", target="score")
        check_failures(collected.scored, parts.config.reward_pool.max_failure_ratio)
        with clock.stage("observe"):
            parts.reporter.groups_scored(step, collected.scored)
        with clock.stage("advantage"):
            samples = parts.algorithm.advantages(collected.groups)
        self._give_devices_to_trainer()
        with clock.stage("pack"):
            trained = parts.trainer.step(samples, clock)
        metrics = {**collected.metrics, **trained}
        with clock.stage("sync"):
            metrics |= self._publish(int(trained["train/updates"]))
        if self._evaluation_is_due(step):
            metrics |= self._evaluate()
        with clock.stage("record"):
            self._record(step, collected, samples)
        self._step = step
        self._finish_step(metrics)

    def _publish(self, updates: int) -> dict[str, float]:
        """Bring the engines to the trainer's weights; nothing moves when nothing was trained."""
        if not updates:
            self._give_devices_to_engines()
            return {"sync/policy_version": float(self._version), "sync/bytes": 0.0}
        first = self._updates == 0
        self._updates += updates
        self._version += 1
        pushed = self._push()
        if first:
            self._probe()
        return {"sync/policy_version": float(self._version), "sync/bytes": float(pushed)}

    def _push(self) -> int:
        """Push the weights as the current version, whole or not at all.

        Returns:
            Bytes moved.
        """
        parts = self._parts
        self._give_devices_to_engines()
        self._await(parts.rollout.pause())
        report = parts.trainers.push(self._version)
        self._await(parts.rollout.resume())
        return report.bytes

    def _probe(self) -> None:
        parts = self._parts
        if parts.probe is not None:
            engines = [endpoint.name for endpoint in parts.rollout.endpoints()]
            with self._clock.stage("probe"):
                difference = self._await(parts.probe.check(parts.rollout, engines, self._version))
            told = f"trainer and {len(engines)} engines agree within {difference:.2g} at version {self._version}"
            parts.reporter.note(f"probe: {told}")

    def _give_devices_to_trainer(self) -> None:
        if self._takes_turns:
            with self._clock.stage("switch"):
                self._await(self._parts.rollout.sleep())
                self._parts.trainers.wake()

    def _give_devices_to_engines(self) -> None:
        if self._takes_turns:
            with self._clock.stage("switch"):
                self._parts.trainers.sleep()
                self._await(self._parts.rollout.wake())

    def _evaluation_is_due(self, step: int) -> bool:
        every = self._parts.config.eval.every
        return bool(every) and (step % every == 0 or step == self._parts.config.train.steps)

    def _evaluate(self) -> dict[str, float]:
        with self._clock.stage("eval"):
            return self._await(self._parts.evaluator.evaluate(self._version))

    def _record(self, step: int, collected: Collected, samples: list[TrainSample]) -> None:
        if self._parts.config.run.save_rollouts:
            self._parts.folder.write_rollouts(step, collected.scored, {s.sample.key: s.advantages for s in samples})

    def _finish_step(self, metrics: Mapping[str, float]) -> None:
        """Metrics are written before the checkpoint is complete: a checkpoint never lacks those of its step."""
        saved = self._checkpoint_is_due()
        if saved:
            self._save()
        self._report(metrics)
        if not saved and self._parts.reporter.stop_reason is not None:
            self._save()
            saved = True
        if saved:
            self._commit()

    def _checkpoint_is_due(self) -> bool:
        every = self._parts.config.checkpoint.every
        return self._step == self._parts.config.train.steps or bool(every and self._step % every == 0)

    def _save(self) -> None:
        with self._clock.stage("save"):
            folder = self._parts.checkpoints.begin(self._step)
            self._parts.trainers.save(folder / "trainer")

    def _commit(self) -> None:
        with self._clock.stage("commit"):
            checkpoint = self._parts.checkpoints.commit(self._step, self._state())
        log.info("checkpoint %s is complete", checkpoint.path.name)

    def _report(self, metrics: Mapping[str, float]) -> None:
        """What is after the times are taken belongs to the next step's."""
        row = {**metrics, **self._clock.lap()}
        with self._clock.stage("report"):
            self._parts.reporter.log(self._step, row)

    def _state(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "policy_version": self._version,
            "updates": self._updates,
            "data": self._parts.collector.state(),
            "random": random_state(),
        }

    def _restore(self, checkpoint: Checkpoint) -> None:
        parts, state = self._parts, checkpoint.state
        parts.collector.restore(state["data"])
        parts.trainers.load(checkpoint.path / "trainer")
        self._step = state["step"]
        self._version = state["policy_version"]
        self._updates = state["updates"]
        parts.reporter.note(f"resumed after step {self._step}, policy version {self._version}")

    def _await(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._parts.events.run_until_complete(work)
