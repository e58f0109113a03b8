"""Sync strategies: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""

from dataclasses import replace

from vime_core.testing.engines import InProcessSync, engine_at


class Good(InProcessSync):
    """Into engines of this process."""


class ClosesOnce(Good):
    """test_it_can_be_closed_before_it_was_connected: the second close raises."""

    def close(self):
        if self._endpoints is None:
            raise RuntimeError("closed")
        self._endpoints = None


class Pretends(Good):
    """test_a_push_without_engines_is_told: reports a push to nobody."""

    def push(self, weights, version):
        if self._rank == 0 and not self._endpoints:
            self._endpoints = []
            return object()
        return super().push(weights, version)


class LeavesTheOthersWaiting(Good):
    """test_other_ranks_take_part_in_making_every_tensor: other ranks return at once."""

    def push(self, weights, version):
        return super().push(weights, version) if self._rank == 0 else None


class FirstEngineOnly(Good):
    """test_a_push_moves_every_tensor_into_every_engine: the second engine keeps its old weights."""

    def connect(self, endpoints):
        super().connect(endpoints[:1])


class SkipsNorms(Good):
    """test_a_push_moves_every_tensor_into_every_engine: leaves tensors out."""

    def push(self, weights, version):
        return super().push(((n, t) for n, t in weights if "norm" not in n), version)


class CastsToFloat(Good):
    """test_a_push_moves_every_tensor_into_every_engine: changes the dtype on the way."""

    def push(self, weights, version):
        return super().push(((name, tensor.half()) for name, tensor in weights), version)


class PushesOnce(Good):
    """test_a_push_moves_every_tensor_into_every_engine: later pushes only change the version."""

    done = None

    def push(self, weights, version):
        if self._rank or self.done is None:
            self.done = super().push(weights, version)
            return self.done
        for _ in weights:
            pass
        for endpoint in self._endpoints:
            engine_at(endpoint.url).version = version
        return replace(self.done, version=version)


class WrongBytes(Good):
    """test_a_push_moves_every_tensor_into_every_engine: counts elements, not bytes."""

    def push(self, weights, version):
        report = super().push(weights, version)
        return report and replace(report, bytes=report.bytes // 4)


class SameChecksum(Good):
    """test_a_checksum_changes_with_its_tensor_only: a checksum of the name."""

    def push(self, weights, version):
        report = super().push(weights, version)
        return report and replace(report, checksums={name: name for name in report.checksums})


class ChecksumOfTheVersion(Good):
    """test_a_checksum_changes_with_its_tensor_only: a checksum that changes with every push."""

    def push(self, weights, version):
        report = super().push(weights, version)
        return report and replace(report, checksums={n: f"{c}{version}" for n, c in report.checksums.items()})


class KeepsWhatItWasLent(Good):
    """test_a_tensor_may_change_once_the_next_is_asked_for: collects references and copies at the end."""

    def push(self, weights, version):
        return super().push(iter(list(weights)), version)


class StampsFirst(Good):
    """test_weights_that_cannot_be_made_stop_the_push: stamps the engines before they have the weights."""

    def push(self, weights, version):
        for endpoint in self._endpoints:
            engine_at(endpoint.url).version = version
        return super().push(weights, version)


class SwallowsErrors(Good):
    """test_weights_that_cannot_be_made_stop_the_push: goes on with what it has."""

    def push(self, weights, version):
        def some():
            try:
                yield from weights
            except ArithmeticError:
                return

        return super().push(some(), version)


class NoPush:
    """test_the_component_has_the_methods_of_its_kind: connects, and no more."""

    def __init__(self, config, rank, world_size):
        pass

    def connect(self, endpoints):
        pass

    def close(self):
        pass
