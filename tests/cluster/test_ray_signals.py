import signal
import sys

import pytest

from vime_core.cluster.ray_signals import caller_handles_sigterm


@pytest.fixture
def received():
    """What the caller's handler of SIGTERM got."""
    signums = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: signums.append(signum))
    yield signums
    signal.signal(signal.SIGTERM, before)


def start_like_ray(*, terminated=False):
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(signum))
    if terminated:
        signal.raise_signal(signal.SIGTERM)


def test_the_handler_outlives_the_start(received):
    with caller_handles_sigterm():
        start_like_ray()
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]


def test_sigterm_during_the_start_reaches_the_handler(received):
    with pytest.raises(SystemExit), caller_handles_sigterm():
        start_like_ray(terminated=True)
    assert received == [signal.SIGTERM]


def test_another_exit_is_no_sigterm(received):
    with pytest.raises(SystemExit), caller_handles_sigterm():
        sys.exit(1)
    assert received == []
