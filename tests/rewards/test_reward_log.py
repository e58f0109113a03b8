"""What log.txt says of scoring processes."""

import re

from vime_core.log import log_to


def test_every_start_kill_and_death_of_a_scoring_process_is_an_event(make_pool, ask, tmp_path):
    with log_to(tmp_path / "log.txt", "driver"):
        pool = make_pool(time_limit_s=0.5)
        pids = [*pool.pids]
        for response in ("spin", "exit 3"):
            ask(pool, response)
            ask(pool, "echo")  # by the process that took its place
            pids += pool.pids
    lines = (tmp_path / "log.txt").read_text().splitlines()
    told = [re.fullmatch(r"\S+ \S+ (\w+) +reward pool: (.*) \(vime_core\.rewards\.process\)", line) for line in lines]
    assert [event.groups() for event in told] == [
        ("INFO", f"scoring process {pids[0]} is ready"),
        ("WARNING", f"scoring process {pids[0]} was killed: no verdict within reward_pool.time_limit_s=0.5"),
        ("INFO", f"scoring process {pids[1]} is ready"),
        ("WARNING", f"scoring process {pids[1]} ended with exit status 3"),
        ("INFO", f"scoring process {pids[2]} is ready"),
    ]
