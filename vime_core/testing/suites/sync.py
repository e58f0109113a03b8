"""Conformance of sync strategies."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from unittest import SkipTest

from vime_core.errors import SyncError
from vime_core.plugins.interfaces import SyncStrategy
from vime_core.testing.contract import Nonconformance, require, require_equal
from vime_core.testing.suite import ComponentSuite, need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from vime_core.plugins.entries import SyncStrategyEntry
    from vime_core.types import EngineEndpoint, PushReport

SHAPES = {
    "model.embed_tokens.weight": (64, 32),
    "model.norm.weight": (32,),
    "lm_head.weight": (64, 32),
    "big": (400, 1024),
}
"""Name -> shape; one tensor is larger than the bucket of the tests (1 MiB)."""


@dataclass(frozen=True)
class Engines:
    """Running engines, for the tests of a sync strategy."""

    endpoints: Sequence[EngineEndpoint]
    version: Callable[[EngineEndpoint], int]
    """The policy version that an engine reports."""
    weights: Callable[[EngineEndpoint], Mapping[str, torch.Tensor]] | None = None
    """The tensors that an engine holds, where they can be read back."""


class SyncStrategySuite(ComponentSuite):
    """Tests of a sync strategy; those that need engines are skipped unless the plugin's test replaces `engines`."""

    group = "sync"
    interface = SyncStrategy

    def test_it_can_be_closed_before_it_was_connected(self) -> None:
        """A run may fail before; and twice."""
        with self.made() as sync:
            sync.close()
            sync.close()

    def test_a_push_without_engines_is_told(self) -> None:
        """Rank 0 must not pretend that it moved anything."""
        with self.made() as sync:
            try:
                report = sync.push(iter(self.weights(0)), 1)
            except SyncError:
                return
            except Exception as error:
                raise Nonconformance(f"a push without engines raises {error!r}, not SyncError") from error
            raise Nonconformance(f"a push without engines returns {report!r}; it must raise SyncError")

    def test_other_ranks_take_part_in_making_every_tensor(self) -> None:
        """Gathering is collective: a rank that stops early leaves the others waiting."""
        taken = []

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in self.weights(0):
                taken.append(name)
                yield name, tensor

        with self.made(rank=1, world_size=2) as sync:
            require(sync.push(weights(), 1) is None, "only rank 0 returns a report")
        require_equal(taken, [name for name, _ in self.weights(0)], "the tensors that rank 1 took part in")

    def test_a_push_moves_every_tensor_into_every_engine(self) -> None:
        """Bit for bit, and tells version, bytes, tensors and a checksum each."""
        with self.engines() as engines, self.connected(engines) as sync:
            for version in (1, 2):
                weights = self.weights(version)
                report = sync.push(iter(weights), version)
                self.require_report(report, weights, version)
                self.require_engines(engines, weights, version)

    def test_a_checksum_changes_with_its_tensor_only(self) -> None:
        """It guards what is moved."""
        with self.engines() as engines, self.connected(engines) as sync:
            first = sync.push(iter(self.weights(1)), 1).checksums
            again = sync.push(iter(self.weights(1)), 2).checksums
            require_equal(dict(again), dict(first), "the checksums of the same weights")
            other = sync.push(iter(self.weights(2)), 3).checksums
            same = [name for name in first if first[name] == other[name]]
            require(not same, f"other tensors have the same checksum: {', '.join(same)}")

    def test_a_tensor_may_change_once_the_next_is_asked_for(self) -> None:
        """`TrainBackend.weights` gives tensors that are valid until the next item."""
        with self.engines() as engines, self.connected(engines) as sync:

            def reused() -> Iterator[tuple[str, torch.Tensor]]:
                for name, tensor in self.weights(1):
                    lent = tensor.clone()
                    yield name, lent
                    lent.fill_(float("nan"))

            expected = sync.push(iter(self.weights(1)), 1).checksums
            found = sync.push(reused(), 2).checksums
            require_equal(dict(found), dict(expected), "the checksums of tensors that change after their turn")
            self.require_engines(engines, self.weights(1), 2)

    def test_weights_that_cannot_be_made_stop_the_push(self) -> None:
        """The trainer's error passes through, and the engines keep their old stamp. Last: engines may be unusable."""
        with self.engines() as engines, self.connected(engines) as sync:
            sync.push(iter(self.weights(1)), 1)

            def failing() -> Iterator[tuple[str, torch.Tensor]]:
                yield self.weights(2)[0]
                raise ArithmeticError("the trainer failed")

            try:
                sync.push(failing(), 2)
            except (ArithmeticError, SyncError):
                stamped = [engine.name for engine in engines.endpoints if engines.version(engine) == 2]
                require(not stamped, f"after a push that failed {', '.join(stamped)} say that they hold its version")
                return
            raise Nonconformance("the error of the trainer is swallowed")

    def require_report(
        self, report: PushReport | None, weights: Sequence[tuple[str, torch.Tensor]], version: int
    ) -> None:
        """Everything that was moved is told."""
        if report is None:
            raise Nonconformance("rank 0 must return a PushReport")
        require_equal(report.version, version, "the version in the report")
        require_equal(report.tensors, len(weights), "the number of tensors in the report")
        require_equal(report.bytes, sum(tensor.nbytes for _, tensor in weights), "the bytes in the report")
        require_equal(sorted(report.checksums), sorted(name for name, _ in weights), "the tensors with a checksum")
        require(report.seconds >= 0, "the seconds in the report are negative")

    def require_engines(self, engines: Engines, weights: Sequence[tuple[str, torch.Tensor]], version: int) -> None:
        """Every engine has the version, and the tensors where they can be read."""
        import torch

        for endpoint in engines.endpoints:
            require_equal(engines.version(endpoint), version, f"the policy version of {endpoint.name}")
            held = engines.weights(endpoint) if engines.weights else None
            for name, tensor in weights if held is not None else ():
                found = (held or {}).get(name)
                same = found is not None and found.dtype == tensor.dtype and torch.equal(found, tensor)
                require(same, f"{name} in {endpoint.name} is not the tensor that was pushed")

    def weights(self, seed: int) -> list[tuple[str, torch.Tensor]]:
        """Tensors to push, all different for another seed; plugins whose engines ask for real ones replace it."""
        need("torch")
        import torch

        rng = torch.Generator().manual_seed(seed)
        tensors = [(name, torch.randn(shape, generator=rng)) for name, shape in SHAPES.items()]
        return [(name, tensor.bfloat16() if name == "big" else tensor) for name, tensor in tensors]

    @contextmanager
    def engines(self) -> Iterator[Engines]:
        """Running engines that the strategy works with.

        Raises:
            SkipTest: when the plugin's test does not say how to start them.
        """
        raise SkipTest("needs running engines: run the package's own tests, which replace `engines`")
        yield

    @contextmanager
    def connected(self, engines: Engines) -> Iterator[Any]:
        """Rank 0 of 1, connected."""
        with self.made() as sync:
            sync.connect(engines.endpoints)
            yield sync

    @contextmanager
    def made(self, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """One rank's part; closed at the end. The environment is that of a trainer rank."""
        need("torch")
        if not cast("SyncStrategyEntry", self.component().entry).engines:
            raise SkipTest("it is for runs without engines")
        with _environment({"VIME_RUN_ID": secrets.token_hex(4), "VIME_PUSH_DEADLINE_S": "60"}):
            sync = self.build(self.config(bucket_mib=1), rank, world_size)
            try:
                yield sync
            finally:
                sync.close()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
