"""Peak memory of a command with everything it starts.

Usage: python benchmarks/peak_memory.py COMMAND [ARG ...]

Sums the proportional set size (PSS: shared pages counted once) over the whole process tree every half second, and
prints the peak with its largest processes. Ends with the command's exit status. Linux only.
"""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

INTERVAL_S = 0.5


def tree_memory(root: psutil.Process) -> list[tuple[int, str]]:
    """(PSS bytes, name) of each living process of the tree, largest first."""
    rows = []
    for process in [root, *root.children(recursive=True)]:
        try:
            command = " ".join(process.cmdline())[:70] or process.name()
            rows.append((process.memory_full_info().pss, command))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return sorted(rows, reverse=True)


def main(command: list[str]) -> int:
    """Run the command to its end and print the peak."""
    process = subprocess.Popen(command)
    root = psutil.Process(process.pid)
    peak: list[tuple[int, str]] = []
    while process.poll() is None:
        try:
            rows = tree_memory(root)
        except psutil.NoSuchProcess:
            break
        if sum(size for size, _ in rows) > sum(size for size, _ in peak):
            peak = rows
        time.sleep(INTERVAL_S)
    print(f"peak {sum(size for size, _ in peak) / 2**30:.2f} GiB over {len(peak)} processes")
    for size, name in peak[:12]:
        print(f"{size / 2**30:8.2f} GiB  {name}")
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
