import os
import subprocess
import sys

from vime_core.cluster.sessions import forked_children_apart

WHERE = [sys.executable, "-c", "import os; print(os.getpid(), os.getsid(0), os.getpgid(0))"]


def start():
    return [int(number) for number in subprocess.check_output(WHERE, preexec_fn=lambda: None).split()]


def test_children_of_the_block_lead_sessions_of_their_own():
    with forked_children_apart():
        pid, session, group = start()
    assert pid == session == group


def test_children_started_later_stay_in_the_group():
    with forked_children_apart():
        pass
    assert start()[1:] == [os.getsid(0), os.getpgid(0)]
