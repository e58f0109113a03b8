"""What a process keeps for good."""

import gc
import subprocess
import sys

PROGRAM = """
import gc
from vime_core.loop.heap import keep_for_good

class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("collected")

Cycle()
kept = [Cycle()]
keep_for_good()
assert gc.get_freeze_count() > 0
assert not any(found is kept[0] for found in gc.get_objects())
print("kept")
kept.append(Cycle())
kept.pop()
gc.collect()
"""


def test_what_is_held_is_left_out_of_the_search_for_garbage_and_what_is_not_is_freed_first():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split()[:3] == ["collected", "kept", "collected"]
    assert gc.get_freeze_count() == 0
