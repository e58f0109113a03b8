"""No scoring process outlives its pool."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from vime_core.cluster.processes import identify, send
from vime_core.errors import RewardError
from vime_core.testing.samples import make_sample
from vime_core.types import Prompt


def exists(pid):
    return identify(pid) is not None


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_close_while_scoring_leaves_no_process_and_no_waiting_caller(make_pool, wait_until):
    pool = make_pool(workers=2, time_limit_s=600.0)
    made = [make_sample(1, 1, index=index) for index in range(4)]
    for sample in made:
        sample.response_text = "spin_in_c"
    outcome = []

    def score():
        try:
            outcome.append(asyncio.run(pool.score(made, Prompt("p", (), (1,), ""))))
        except RewardError as error:
            outcome.append(str(error))

    caller = threading.Thread(target=score)
    caller.start()
    pids = pool.pids
    busy_since = {pid: cpu_seconds(pid) for pid in pids}
    wait_until(lambda: all(cpu_seconds(pid) > busy_since[pid] + 0.05 for pid in pids))
    pool.close()
    caller.join(60)
    assert not any(exists(pid) for pid in pids)
    assert outcome in (["the reward pool was closed while it was scoring"], ["the reward pool is closed"])


DRIVER = """
import asyncio, sys, threading
sys.path.insert(0, {modules!r})
from pool_rewards import Settings
from vime_core.config.schema import RewardPoolConfig
from vime_core.rewards.pool import RewardPool, RewardSpec
from vime_core.testing.samples import make_sample
from vime_core.types import Prompt

pool = RewardPool(
    [RewardSpec("obey", "pool_rewards:Obey", Settings())], config=RewardPoolConfig(workers=4, time_limit_s=600.0)
)
pool.start()
samples = [make_sample(1, 1, index=index) for index in range(3)]
for sample, action in zip(samples, ["spin", "spin_in_c", "sleep"]):
    sample.response_text = action
print(*pool.pids, flush=True)
asyncio.run(pool.score(samples, Prompt("p", (), (1,), "")))
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_owner(signum, tmp_path, wait_until):
    code = DRIVER.format(modules=str(Path(__file__).parent / "modules"))
    with (tmp_path / "stderr").open("wb") as stderr:
        driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=stderr, text=True)
    with driver, ExitStack() as cleanup:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        for process in filter(None, map(identify, pids)):
            cleanup.callback(send, process, signal.SIGKILL)
        assert len(pids) == 4, (tmp_path / "stderr").read_text()
        started = {pid: cpu_seconds(pid) for pid in pids}
        wait_until(lambda: sum(cpu_seconds(pid) > started[pid] + 0.05 for pid in pids) == 2)
        driver.send_signal(signum)
        driver.wait(60)
        wait_until(lambda: not any(exists(pid) for pid in pids))


def test_workers_import_nothing_heavy_and_ignore_the_terminals_interrupt(make_pool):
    [pid] = make_pool().pids
    with open(f"/proc/{pid}/maps") as file:
        maps = file.read()
    assert not any(f"/{name}/" in maps for name in ("torch", "ray", "pyarrow", "transformers"))
    assert os.getsid(pid) == pid != os.getsid(0)
