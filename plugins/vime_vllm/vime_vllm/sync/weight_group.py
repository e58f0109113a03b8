"""The trainer's end of the process group that carries weights: meeting the workers, sending a bucket."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vime_core.accelerators.collective import SENDER, Collective, own_address
from vime_core.errors import SyncError
from vime_vllm.ports import listen
from vime_vllm.sync.answers import is_own_fault
from vime_vllm.sync.group_plan import plan_group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch.distributed import TCPStore

    from vime_core.types import EngineEndpoint
    from vime_vllm.sync.answers import Answers
    from vime_vllm.sync.clock import Clock
    from vime_vllm.sync.control import WeightSessions
    from vime_vllm.sync.group_plan import GroupPlan

POLL_S = 0.05
GREETING_BYTES = 16
PREFIX = "weights"
"""Of what the ranks write into the store as they meet."""


GREETED = "greeted"
"""What a worker has done that got the greeting."""


def arrival(rank: int) -> str:
    """Key that a worker writes into the store when it begins to meet the others."""
    return f"arrived/{rank}"


def progress(rank: int) -> str:
    """Key below which a worker writes what it has done last, whether that went well or not."""
    return f"done/{rank}"


def meet(sessions: WeightSessions, endpoints: Sequence[EngineEndpoint], backend: str, clock: Clock) -> WeightGroup:
    """Make the group with all workers of all engines, and try it.

    The store at which they meet, and the group, let in whoever comes, so they are at the address at which the engines
    are; a greeting, told with the run's key, makes sure that both ends are of one group.

    Args:
        sessions: with the engines.
        endpoints: the engines.
        backend: of the collectives.
        clock: time for all of it.

    Raises:
        SyncError: names the engine that did not come, or what went wrong.
        ResourceError: when no port is free.
    """
    plan = plan_group(sessions.workers())
    host = _address(endpoints)
    store, port = _store(host, plan.size, clock)
    greeting = secrets.token_bytes(GREETING_BYTES)
    common = {
        "host": host,
        "port": port,
        "size": plan.size,
        "backend": backend,
        "timeout_s": clock.transfer(),
        "greeting": greeting.hex(),
    }
    infos = {name: {**common, "first_rank": ranks.start} for name, ranks in plan.engines.items()}
    answers = sessions.init_each(infos, clock)
    _await_arrivals(store, plan, answers, clock)
    collective = _bounded(lambda: _joined(store, plan, backend, host, greeting, clock), answers, clock)
    group = WeightGroup(collective, store, plan)
    try:
        group.confirm(answers, GREETED, "the trainer's greeting", clock)
    except SyncError:
        group.close()
        raise
    return group


class WeightGroup:
    """Sends to all workers.

    Args:
        collective: whose other ranks they are.
        store: at which the ranks met; they go on writing into it.
        plan: who they are.
    """

    def __init__(self, collective: Collective, store: TCPStore, plan: GroupPlan) -> None:
        self.device = collective.device
        self._collective = collective
        self._store: TCPStore | None = store
        self._plan = plan

    def send(self, data: torch.Tensor, timeout_s: float) -> None:
        """Begin to send a bucket: [size] uint8 on `device`. The engines' answers tell whether it has arrived."""
        self._collective.broadcast(data, timeout_s)

    def confirm(self, answers: Answers, mark: str, what: str, clock: Clock) -> None:
        """Return when every engine has what was sent.

        Args:
            answers: of the engines.
            mark: what each worker writes that is done with it.
            what: was sent, for messages.
            clock: time for it.

        Raises:
            SyncError: names the engine that failed, or the workers that hang, have died or cannot be reached.
        """
        try:
            answers.wait(clock)
            self._collective.wait(clock.left())
        except SyncError as error:
            if is_own_fault(error):
                raise
            behind = self._behind(mark)
            if not behind:
                raise
            raise SyncError(
                f"weight push: {behind} did not take {what} in time: it hangs, has died or cannot be reached"
            ) from error
        except RuntimeError as error:
            raise SyncError(f"weight push: the broadcast failed: {_one_line(error)}") from error

    def _behind(self, mark: str) -> str:
        store = self._store
        if store is None:
            return ""

        def is_behind(rank: int) -> bool:
            return not store.check([progress(rank)]) or store.get(progress(rank)).decode() != mark

        return _named({name: [r for r in ranks if is_behind(r)] for name, ranks in self._plan.engines.items()})

    def close(self) -> None:
        """Leave the group, see `Collective.close`."""
        self._collective.close()
        self._store = None


def _address(endpoints: Sequence[EngineEndpoint]) -> str:
    """The trainer's own, at which all engines reach it."""
    addresses = {own_address(urlsplit(endpoint.url).hostname or ""): endpoint.name for endpoint in endpoints}
    if len(addresses) > 1:
        told = ", ".join(f"{name} from {address}" for address, name in addresses.items())
        raise SyncError(f"weight push: the engines are reached from several addresses ({told}); they must share one")
    return next(iter(addresses))


def _store(host: str, size: int, clock: Clock) -> tuple[TCPStore, int]:
    from torch.distributed import TCPStore

    listener = listen(host)
    port = listener.getsockname()[1]
    timeout = timedelta(seconds=clock.transfer())
    return TCPStore(host, port, size, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()), port


def _await_arrivals(store: TCPStore, plan: GroupPlan, answers: Answers, clock: Clock) -> None:
    awaited = [arrival(rank) for ranks in plan.engines.values() for rank in ranks]
    end = clock.left() - clock.transfer()
    while not store.check(awaited):
        settled = answers.settled(POLL_S)
        answers.check()
        if settled or clock.left() <= end:
            missing = {
                name: [rank for rank in ranks if not store.check([arrival(rank)])]
                for name, ranks in plan.engines.items()
            }
            raise SyncError(
                f"weight push: {_named(missing)} did not join the group of trainer and engines within "
                f"{clock.limit_s - clock.left():.3g} s"
            )


def _joined(store: TCPStore, plan: GroupPlan, backend: str, host: str, greeting: bytes, clock: Clock) -> Collective:
    import torch
    from torch.distributed import PrefixStore

    met = Collective(backend, PrefixStore(PREFIX, store), SENDER, plan.size, address=host, timeout_s=clock.transfer())
    met.broadcast(torch.frombuffer(bytearray(greeting), dtype=torch.uint8).to(met.device), clock.transfer())
    return met


def _bounded(make: Callable[[], Collective], answers: Answers, clock: Clock) -> Collective:
    """What a thread makes: NCCL waits for ranks that never come, without an end."""
    made: Future[Collective] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except Exception as error:
            made.set_exception(error)

    threading.Thread(target=run, name="vime-weight-group-meets", daemon=True).start()
    try:
        return made.result(clock.left())
    except FutureTimeoutError as error:
        answers.wait(clock)
        raise SyncError(f"weight push: trainer and engines did not meet within {clock.limit_s:g} s") from error
    except RuntimeError as error:
        answers.wait(clock)
        raise SyncError(f"weight push: trainer and engines did not meet: {_one_line(error)}") from error


def _named(engines: Mapping[str, Sequence[int]]) -> str:
    """Engines and their ranks; those without any are left out."""
    return "; ".join(f"{name} (rank {', '.join(map(str, ranks))})" for name, ranks in engines.items() if ranks)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
