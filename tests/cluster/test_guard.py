import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from vime_core.cluster import processes
from vime_core.cluster.guard import GuardedProcess
from vime_core.errors import DeadlineError, KeeperError

OWNER = """
    import os, sys, time
    from pathlib import Path
    from vime_core.cluster.guard import GuardedProcess

    GuardedProcess(sys.argv[2:], env=os.environ, log=Path(sys.argv[1])).start()
    print("started", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def guarded(tmp_path):
    made = []

    def make(*command, env=None, **options):
        process = GuardedProcess(
            command, env=dict(os.environ if env is None else env), log=tmp_path / "logs" / "log", **options
        )
        made.append(process)
        return process

    yield make
    for process in made:
        process.stop(0)


def test_exit_status_output_and_environment(guarded):
    code = "import os, sys; print(os.environ['NAME'], os.listdir('/proc/self/fd')[:3]); sys.exit(7)"
    process = guarded(sys.executable, "-c", code, env={"NAME": "value"})
    process.start()
    assert process.wait(60) == process.poll() == 7
    assert process.log_tail() == "value ['0', '1', '2']"


def test_the_command_inherits_no_other_descriptor(guarded):
    code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"  # less the one that lists them
    process = guarded(sys.executable, "-c", code)
    process.start()
    process.wait(60)
    assert process.log_tail() == "[0, 1, 2]"


def test_signals_have_their_defaults_in_the_command(guarded):
    process = guarded(sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    process.start()
    assert process.wait(60) == 128 + signal.SIGTERM


def test_a_command_that_cannot_run_says_so(guarded):
    process = guarded("/nowhere/server")
    process.start()
    assert process.wait(60) == 127
    assert process.log_tail() == "cannot run /nowhere/server: No such file or directory"


def test_log_tail_is_the_end(guarded):
    process = guarded(sys.executable, "-c", "print('x' * 100_000); [print(i) for i in range(100)]")
    assert process.log_tail() == ""
    process.start()
    process.wait(60)
    assert process.log_tail(2) == "98\n99"


def test_wait_has_a_deadline(guarded):
    process = guarded("sleep", "600")
    process.start()
    with pytest.raises(DeadlineError, match=r"sleep \(pid \d+\) still runs after 0.1 s; its log is .*log"):
        process.wait(0.1)
    assert process.poll() is None


def test_stop_lets_the_command_end_in_order(guarded, wait_until):
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("in order", flush=True), sys.exit(3)))
print("ready", flush=True)
time.sleep(600)
"""
    process = guarded(sys.executable, "-c", code)
    process.start()
    wait_until(process.log_tail)
    process.stop(60)
    assert process.poll() == 3
    assert process.log_tail() == "ready\nin order"
    process.stop(60)


def test_stop_kills_what_does_not_go(guarded, tree):
    process = guarded(*tree.command)
    process.start()
    tree.started()
    process.stop(60)
    assert process.poll() == 128 + signal.SIGTERM
    assert not tree.alive()


def test_stop_lets_a_stopped_command_end_in_order(guarded, tree):
    process = guarded(*tree.command)
    process.start()
    tree.started().stop_root()
    process.stop(60)
    assert process.poll() == 128 + signal.SIGTERM
    assert not tree.alive()


def test_stop_before_start_does_nothing(guarded):
    process = guarded("sleep", "600")
    process.stop(1)
    assert process.poll() is None


def test_the_rest_ends_with_the_command(guarded, tree):
    process = guarded(*tree.command)
    process.start()
    processes.send(tree.started().members["root"], signal.SIGKILL)
    assert process.wait(60) == 128 + signal.SIGKILL
    assert not tree.alive()


def guardians(process):
    """The outer and the inner one."""
    outer = processes.identify(process.pid)
    [inner] = [p for p in processes.descendants(process.pid) if "guardian.py" in cmdline(p)]
    return {"outer": outer, "inner": inner}


def cmdline(process):
    return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")[3]


@pytest.mark.parametrize(
    ("which", "end"),
    [("outer", "lost its guardian, which was killed by SIGKILL"), ("inner", "was killed by SIGKILL")],
)
def test_everything_ends_when_a_guardian_is_killed(guarded, tree, which, end):
    process = guarded(*tree.command)
    process.start()
    tree.started()
    processes.send(guardians(process)[which], signal.SIGKILL)
    assert process.wait(60) == 128 + signal.SIGKILL
    assert not tree.alive()
    assert process.end() == end


@pytest.mark.parametrize("which", ["outer", "inner"])
def test_stop_ends_what_a_stopped_guardian_guards(guarded, tree, which):
    process = guarded(*tree.command)
    process.start()
    tree.started()
    found = guardians(process)
    processes.send(found[which], signal.SIGSTOP)
    process.stop(0.5)
    assert not tree.alive()
    assert not any(processes.is_alive(guardian) for guardian in found.values())


@pytest.mark.parametrize("which", ["outer", "inner"])
def test_everything_ends_with_the_owner_though_a_guardian_was_killed(run_script, tree, tmp_path, which, wait_until):
    owner = run_script(OWNER, tmp_path / "log", *tree.command)
    tree.started()
    [outer] = [p for p in processes.descendants(owner.pid) if parent(p) == owner.pid]
    found = guardians(outer)
    owner.kill()
    processes.send(found[which], signal.SIGKILL)
    owner.wait()
    tree.ended()
    wait_until(lambda: not any(processes.is_alive(guardian) for guardian in found.values()))


def parent(process):
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_everything_ends_with_the_owner(run_script, tree, tmp_path, signum):
    owner = run_script(OWNER, tmp_path / "log", *tree.command)
    tree.started()
    os.kill(owner.pid, signum)
    owner.wait()
    tree.ended()


def test_a_fork_of_the_owner_does_not_keep_the_command_alive(run_script, tree, tmp_path):
    fork = """
    import multiprocessing, time
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    print(child.pid, flush=True)
    time.sleep(600)
"""
    owner = run_script(OWNER.replace("    time.sleep(600)\n", fork), tmp_path / "log", *tree.command)
    tree.started()
    assert owner.stdout.readline() == "started\n"
    child = processes.identify(int(owner.stdout.readline()))
    owner.kill()
    tree.ended()
    assert processes.is_alive(child)
    processes.send(child, signal.SIGKILL)


def test_the_thread_that_starts_may_end(guarded):
    process = guarded("sleep", "600")
    thread = threading.Thread(target=process.start)
    thread.start()
    thread.join()
    with pytest.raises(DeadlineError):
        process.wait(0.3)


def test_a_keeper_that_is_not_there_fails_the_start(guarded, tmp_path):
    process = guarded("sleep", "600", keeper=str(tmp_path / "socket"))
    with pytest.raises(KeeperError, match=r"the keeper at .* has gone"):
        process.start()
    assert process.poll() is not None
