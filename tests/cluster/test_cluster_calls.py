"""Calls of actors: real Ray, real deaths."""

import os
import signal
import time

import pytest

from vime_core.cluster.calls import first_line, gather
from vime_core.cluster.placement import BundleLayout, Placement
from vime_core.cluster.witness import Vital
from vime_core.errors import DeadlineError, ResourceError, SyncError, TrainerError

pytestmark = pytest.mark.usefixtures("ray_runtime")

NAMES = ["rank 0", "rank 1"]


class Member:
    def answer(self, value):
        return value

    def fail(self, error):
        raise error

    def die(self):
        os._exit(3)

    def pid(self):
        return os.getpid()

    def never(self):
        time.sleep(3600)

    def variable(self, name):
        return os.environ[name]


@pytest.fixture
def members():
    import ray

    actors = [ray.remote(Member).options(num_cpus=0).remote() for _ in range(2)]
    gather([actor.answer.remote(0) for actor in actors], NAMES, what="start", deadline_s=120)
    yield actors
    for actor in actors:
        ray.kill(actor)


def test_results_come_in_order(members):
    refs = [member.answer.remote(index) for index, member in enumerate(members)]
    assert gather(refs, NAMES, what="ask", deadline_s=60) == [0, 1]


def test_first_failure_is_told_while_others_hang(members):
    refs = [members[0].never.remote(), members[1].fail.remote(ValueError("bad\nsecond line"))]
    with pytest.raises(TrainerError, match=r"^rank 1 failed during update: ValueError: bad$"):
        gather(refs, NAMES, what="update", deadline_s=60)


def test_own_errors_keep_their_class_and_line(members):
    refs = [members[0].never.remote(), members[1].fail.remote(SyncError("engine 0 did not confirm"))]
    with pytest.raises(SyncError, match=r"^engine 0 did not confirm$"):
        gather(refs, NAMES, what="push", deadline_s=60)


def test_death_is_told_while_others_hang(members):
    refs = [members[0].die.remote(), members[1].never.remote()]
    with pytest.raises(TrainerError, match=r"^rank 0 died during update: "):
        gather(refs, NAMES, what="update", deadline_s=60)


def test_a_death_is_told_with_its_signal_where_the_process_can_be_seen(members):
    import ray

    pids = ray.get([member.pid.remote() for member in members])
    vitals = {name: Vital(name, pid, 60) for name, pid in zip(NAMES, pids, strict=True)}
    refs = [members[0].never.remote(), members[1].never.remote()]
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(TrainerError, match=r"^rank 1 (was killed by SIGKILL|ended without a word.*) during update$"):
        gather(refs, NAMES, what="update", deadline_s=60, vitals=vitals)
    for vital in vitals.values():
        vital.close()


def test_deadline_names_who_did_not_answer(members):
    refs = [members[0].answer.remote(1), members[1].never.remote()]
    with pytest.raises(DeadlineError, match=r"^update: no answer from rank 1 within 2 s$"):
        gather(refs, NAMES, what="update", deadline_s=2)


def test_first_line_of_an_empty_message():
    assert first_line(KeyError()) == "KeyError"
    assert first_line(ValueError("\n  \n two \n three")) == "two"


def test_layout_shares_bundles_between_trainer_and_engines():
    layout = BundleLayout(ranks=2, engines=3, devices_per_engine=2)
    assert layout.bundles == 6
    assert [list(layout.engine_bundles(engine)) for engine in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert BundleLayout(ranks=4, engines=1, devices_per_engine=1).bundles == 4


def test_placed_actor_gets_its_environment():
    import ray

    placement = Placement(BundleLayout(ranks=1, engines=1, devices_per_engine=1), "CPU")
    placement.create(deadline_s=60)
    actors = [ray.remote(Member).options(**placement.options(0, {"VIME_TEST": who})).remote() for who in "ab"]
    refs = [actor.variable.remote("VIME_TEST") for actor in actors]
    assert gather(refs, NAMES, what="ask", deadline_s=120) == ["a", "b"]
    for actor in actors:
        ray.kill(actor)
    placement.remove()


def test_too_few_devices_are_told():
    with pytest.raises(ResourceError, match=r"needs 99 CPU \(train\.world_size=99, rollout\.num_engines=1\)"):
        Placement(BundleLayout(ranks=99, engines=1, devices_per_engine=1), "CPU").create(deadline_s=60)
