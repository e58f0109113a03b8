import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "startup.py"


def run(*options):
    command = [sys.executable, str(PROGRAM), "--plugins", "3", "--repeat", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def test_the_benchmark_of_the_start_measures_and_keeps_its_limit():
    done = run("--limit", "1000")
    assert done.returncode == 0, done.stderr
    assert "with 3 plugins, " in done.stdout
    assert done.stdout.splitlines()[-1] == "limit: 1000x, kept"
    assert run("--limit", "0").returncode == 1
