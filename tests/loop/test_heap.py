"""What is left out of the search for garbage."""

import gc
import subprocess
import sys

PROGRAM = """
import gc
from vime_core.loop.heap import heap_left_alone

class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("collected")

Cycle()
kept = [Cycle()]
with heap_left_alone():
    assert gc.get_freeze_count() > 0
    assert not any(found is kept[0] for found in gc.get_objects())
    print("kept")
    Cycle()
    gc.collect()
    kept.clear()
    gc.collect()
    print("left")
assert gc.get_freeze_count() == 0
gc.collect()
print("end")
"""


def test_what_is_held_is_left_out_of_the_search_for_garbage_and_what_is_not_is_freed_first():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["collected", "kept", "collected", "left", "collected", "end"]
    assert gc.get_freeze_count() == 0
