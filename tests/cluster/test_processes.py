import os
import signal
import subprocess
import sys
from pathlib import Path

from vime_core.cluster import processes
from vime_core.cluster.processes import ProcessId


def test_identity_is_stable_and_survives_odd_names(tmp_path):
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) Z 1 (b'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        process = processes.identify(child.pid)
        assert process == processes.identify(child.pid)
        assert processes.name(process) == "a) Z 1 (b"
        assert process in processes.descendants(os.getpid())
        child.stdin.close()
    assert processes.identify(child.pid) is None


def test_zombies_are_not_alive():
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert os.path.exists(f"/proc/{child.pid}")
        assert processes.identify(child.pid) is None


def test_a_pid_that_is_used_again_is_left_alone():
    with subprocess.Popen(["sleep", "600"]) as child:
        process = processes.identify(child.pid)
        stranger = ProcessId(child.pid, process.start - 1)
        assert not processes.is_alive(stranger)
        processes.send(stranger, signal.SIGKILL)
        assert processes.end_trees([stranger]) == set()
        assert child.poll() is None
        assert processes.end_trees([process]) == {process}
    assert child.returncode == -signal.SIGKILL


CALLER = """
import os, signal, subprocess
from vime_core.cluster import processes
children = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
children[1].send_signal(signal.SIGSTOP)
ended = processes.end_trees([processes.identify(os.getpid())])
assert {process.pid for process in ended} == {child.pid for child in children}
print([child.wait(60) for child in children])
"""


def test_end_trees_takes_children_and_spares_the_caller():
    """In a process of its own: this one has children that other tests need."""
    done = subprocess.run([sys.executable, "-c", CALLER], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{[-signal.SIGKILL.value] * 2}\n", done.stderr


def test_the_whole_tree_is_stopped_before_any_of_it_is_killed(tree, monkeypatch):
    """Otherwise a supervisor could start a child again that was killed before it."""
    sent = []
    send = processes.send

    def record(process, signum):
        sent.append((signum, process))
        send(process, signum)

    monkeypatch.setattr(processes, "send", record)
    with subprocess.Popen(tree.command, start_new_session=True) as root:
        tree.started()
        ended = processes.end_trees([processes.identify(root.pid)])
    half = len(sent) // 2
    assert {process for signum, process in sent[:half] if signum == signal.SIGSTOP} == ended
    assert {process for signum, process in sent[half:] if signum == signal.SIGKILL} == ended
    assert len(ended) == half == 3


def test_a_tree_that_keeps_forking_is_ended_whole(tmp_path, wait_until):
    code = """
import os, time
for _ in range(300):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        time.sleep(600)
    time.sleep(0.001)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as child:
        root = processes.identify(child.pid)
        wait_until(lambda: len(processes.descendants(child.pid)) > 20)
        assert len(processes.end_trees([root])) > 20
    wait_until(lambda: not processes_with_argument(str(tmp_path)))


def processes_with_argument(argument):
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            arguments = Path(f"/proc/{entry}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if argument in arguments and processes.identify(int(entry)):
            found.append(int(entry))
    return found
