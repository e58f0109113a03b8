import os
import signal
import subprocess
import sys

import pytest

from vime_core.cluster.processes import is_stopped
from vime_core.cluster.witness import Patience, Vital, Witness, describe

PARENT = """
    import subprocess, sys

    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
    print(child.pid, flush=True)
    sys.stdin.readline()
    child.stdin.close()
    print(child.wait(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def grandchild(run_script):
    """Somebody else's child: (its witness, its parent)."""
    made = []

    def make(code):
        parent = run_script(PARENT, code)
        made.append(Witness(int(parent.stdout.readline())))
        return made[-1], parent

    yield make
    for witness in made:
        witness.kill()
        witness.close()


def test_a_process_that_was_killed_is_told_by_its_signal(grandchild, wait_until):
    witness, parent = grandchild("input()")
    assert not witness.has_ended()
    assert witness.status() is None
    os.kill(witness.pid, signal.SIGKILL)
    parent.stdin.write("\n")
    parent.stdin.flush()
    wait_until(witness.has_ended)
    parent.stdout.readline()
    assert witness.status() in (128 + signal.SIGKILL, None)  # None before Linux 6.15


def test_an_exit_status_is_told(grandchild, wait_until):
    witness, parent = grandchild("import sys; sys.stdin.read(); sys.exit(3)")
    parent.stdin.write("\n")
    parent.stdin.flush()
    wait_until(witness.has_ended)
    parent.stdout.readline()
    assert witness.status() in (3, None)


def test_a_stopped_process_is_seen(grandchild, wait_until):
    witness, _ = grandchild("input()")
    assert not witness.is_stopped()
    os.kill(witness.pid, signal.SIGSTOP)
    wait_until(witness.is_stopped)
    os.kill(witness.pid, signal.SIGCONT)
    wait_until(lambda: not witness.is_stopped())


def test_the_title_is_the_last_one_known(run_script, wait_until):
    process = run_script("import setproctitle; input(); setproctitle.setproctitle('VLLM::EngineCore'); input()")
    witness = Witness(process.pid)
    wait_until(lambda: not witness.is_stopped() and witness.title.startswith("python"))
    process.stdin.write("\n")
    process.stdin.flush()
    wait_until(lambda: not witness.is_stopped() and witness.title == "VLLM::EngineCore")
    process.kill()
    wait_until(witness.has_ended)
    witness.look()
    assert witness.title == "VLLM::EngineCore"
    witness.close()


def test_a_witness_never_takes_another_process_for_its_own():
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    witness = Witness(process.pid)
    process.wait()
    assert witness.has_ended()
    assert not witness.is_stopped()
    witness.kill()
    witness.close()
    with pytest.raises(ProcessLookupError):
        Witness(process.pid)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (137, "was killed by SIGKILL"),
        (139, "was killed by SIGSEGV"),
        (0, "ended with exit status 0"),
        (255, "ended with exit status 255"),
        (None, "ended without a word (killed, for lack of memory or by somebody?)"),
    ],
)
def test_how_something_ended(status, told):
    assert describe(status) == told


def test_patience_counts_only_what_the_asker_saw(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    patience = Patience(5, longest_step_s=2)

    def ask(after, well):
        now[0] += after
        return patience.is_over(well)

    assert not any(ask(1, well) for well in [False] * 4 + [True] + [False] * 4)
    assert ask(1, False)
    assert not ask(1, True)
    assert not ask(600, False)  # the asker stood still itself
    assert not ask(600, False)
    assert ask(600, False)


def test_only_a_process_that_is_stopped_is_killed(wait_until):
    sleeping = subprocess.Popen(["sleep", "1000"])
    vital = Vital("rank", sleeping.pid, 60)
    vital.kill_if_stopped()
    assert vital.trouble() is None
    sleeping.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(sleeping.pid))
    vital.kill_if_stopped()
    assert sleeping.wait(30) == -signal.SIGKILL
    vital.close()
