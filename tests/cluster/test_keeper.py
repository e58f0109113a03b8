import os
import signal
import stat
import subprocess
import threading
import uuid
from pathlib import Path

import pytest

from vime_core.cluster import processes
from vime_core.cluster.guard import GuardedProcess
from vime_core.cluster.keeper import Keeper, KeeperClient, register_descendants
from vime_core.cluster.keeper_process import Registry, end_processes
from vime_core.errors import DeadlineError, KeeperError, ResourceError

DRIVER = """
    import sys, time
    from pathlib import Path
    from vime_core.cluster.keeper import Keeper

    keeper = Keeper.start(sys.argv[1], Path(sys.argv[2]))
    print(keeper.address, flush=True)
    print(keeper.pid, flush=True)
    for line in sys.stdin:
        keeper.close(60)
        print("closed", flush=True)
"""


class Driver:
    """Another process with a keeper."""

    def __init__(self, process):
        self.process = process
        self.address = process.stdout.readline().strip()
        self.keeper = processes.identify(int(process.stdout.readline()))
        self.client = KeeperClient(self.address)

    def vanish(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "closed\n"


@pytest.fixture
def run_id():
    run_id = uuid.uuid4().hex[:12]
    yield run_id
    for path in Path("/dev/shm").glob(f"vime-{run_id}*"):
        path.unlink()


@pytest.fixture
def driver(run_script, run_id, tmp_path, wait_until):
    driver = Driver(run_script(DRIVER, run_id, tmp_path))
    yield driver
    driver.vanish()
    processes.send(driver.keeper, signal.SIGCONT)
    wait_until(keeper_gone(driver))


@pytest.fixture
def victim():
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def keeper_gone(driver):
    return lambda: not processes.is_alive(driver.keeper)


def test_what_is_registered_ends_with_the_driver(driver, tree, victim, wait_until, tmp_path):
    with subprocess.Popen(tree.command, start_new_session=True) as root:
        tree.started()
        driver.client.register_process(root.pid)
        driver.client.register_process(tree.members["daemon"].pid)
        driver.vanish()
    tree.ended()
    wait_until(keeper_gone(driver))
    assert victim.poll() is None
    log = (tmp_path / "keeper.log").read_text()
    assert f"killed {root.pid} python" in log
    assert all(f"killed {member.pid} " in log for member in tree.members.values())


def test_a_tree_is_registered_before_its_root_dies(driver, tree):
    with subprocess.Popen(tree.command, start_new_session=True) as root:
        tree.started()
        driver.client.register_tree(root.pid)
        driver.client.register_tree(tree.members["daemon"].pid)
        root.kill()
    assert tree.alive() == {"plain", "stopped", "daemon"}
    driver.vanish()
    tree.ended()


def test_descendants_can_be_registered(driver, tree, wait_until):
    assert register_descendants(driver.client, driver.process.pid) == 1  # its keeper, which spares itself
    with subprocess.Popen(tree.command, start_new_session=True) as root:
        tree.started()
        found = processes.descendants(root.pid)
        assert register_descendants(driver.client, root.pid) == len(found) == 2
        assert register_descendants(driver.client, root.pid, but=found) == 0
        driver.vanish()
        wait_until(lambda: not any(processes.is_alive(process) for process in found))
        assert root.poll() is None
        root.kill()


def test_a_pid_used_again_is_left_alone(driver, victim, wait_until):
    process = processes.identify(victim.pid)
    driver.client.register_identified([process._replace(start=process.start - 1)])
    driver.vanish()
    wait_until(keeper_gone(driver))
    assert victim.poll() is None


def test_a_forgotten_process_is_left_alone(driver, victim, wait_until):
    driver.client.register_process(victim.pid)
    driver.client.forget_process(victim.pid)
    driver.vanish()
    wait_until(keeper_gone(driver))
    assert victim.poll() is None


def test_a_process_that_has_ended_may_be_registered(driver, victim):
    victim.kill()
    victim.wait()
    driver.client.register_process(victim.pid)
    driver.client.register_tree(victim.pid)


def test_segments_paths_and_the_private_folder_are_deleted(driver, run_id, wait_until, tmp_path):
    mine = [Path(f"/dev/shm/vime-{run_id}-{name}") for name in ("weights", "more")]
    others = Path(f"/dev/shm/vime-{run_id}0-weights")
    for path in (*mine, others, tmp_path / "file"):
        path.write_bytes(b"x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "outside")
    for name in ("file", "folder", "missing"):
        driver.client.register_path(tmp_path / name)
    home = Path(driver.address).parent
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    driver.vanish()
    wait_until(keeper_gone(driver))
    assert not any(path.exists() for path in (*mine, tmp_path / "file", tmp_path / "folder", home))
    assert others.exists()
    assert (tmp_path / "outside").exists()


@pytest.mark.parametrize("path", ["relative/path", "/", "/tmp"])
def test_a_path_that_no_run_owns_is_refused(driver, path):
    with pytest.raises(ValueError, match="no path that a keeper may delete"):
        driver.client.register_path(path)


def test_an_orderly_end_ends_what_the_driver_could_not(driver, run_id, victim, tmp_path):
    segment = Path(f"/dev/shm/vime-{run_id}-weights")
    segment.write_bytes(b"x")
    driver.client.register_process(victim.pid)
    os.kill(victim.pid, signal.SIGSTOP)
    driver.close()
    driver.close()
    assert not processes.is_alive(driver.keeper)
    assert not Path(driver.address).parent.exists()
    assert victim.wait(60) == -signal.SIGKILL
    assert not segment.exists()
    assert f"killed {victim.pid} sleep" in (tmp_path / "keeper.log").read_text()


def test_an_orderly_end_spares_the_driver(driver):
    driver.client.register_process(driver.process.pid)
    driver.close()
    assert driver.process.poll() is None


def test_an_orderly_end_with_nothing_left_says_nothing(driver, victim, tmp_path):
    driver.close()
    assert victim.poll() is None
    assert (tmp_path / "keeper.log").read_text() == ""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_keeper_outlives_what_ends_its_driver(driver, victim, wait_until, signum):
    driver.client.register_process(victim.pid)
    os.kill(driver.keeper.pid, signum)
    os.killpg(driver.process.pid, signum)
    driver.process.wait()
    assert victim.wait(60) == -signal.SIGKILL
    wait_until(keeper_gone(driver))


def test_the_keeper_is_not_in_the_group_of_its_driver(driver, victim):
    driver.client.register_process(victim.pid)
    os.killpg(driver.process.pid, signal.SIGKILL)
    driver.process.wait()
    assert victim.wait(60) == -signal.SIGKILL


def test_a_registration_that_comes_late_is_ended_too(victim, monkeypatch):
    """A worker of the run may still start something while the keeper is at work."""
    registry = Registry()
    late = subprocess.Popen(["sleep", "600"])
    end_trees = processes.end_trees

    def register(pid):
        registry.handle({"request": "register_processes", "processes": [processes.identify(pid)]})

    def end_and_register(roots):
        ended = end_trees(roots)
        if late.poll() is None:
            register(late.pid)
        return ended

    monkeypatch.setattr(processes, "end_trees", end_and_register)
    register(victim.pid)
    end_processes(registry, 60)
    assert victim.wait(60) == late.wait() == -signal.SIGKILL


def test_a_guarded_process_registers_itself(driver, tree, tmp_path):
    guarded = GuardedProcess(tree.command, env=os.environ, log=tmp_path / "log", keeper=driver.address)
    guarded.start()
    tree.started()
    driver.vanish()
    tree.ended()
    assert guarded.wait(60) == 128 + signal.SIGKILL


def test_many_registrations_at_once(driver, victim):
    threads = [threading.Thread(target=driver.client.register_process, args=(victim.pid,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    driver.vanish()
    assert victim.wait(60) == -signal.SIGKILL


def test_a_keeper_without_a_log_folder(run_id, tmp_path):
    keeper = Keeper.start(run_id, tmp_path / "missing")
    assert keeper.is_alive()
    keeper.close(60)
    assert not keeper.is_alive()
    assert not (tmp_path / "missing").exists()
    with pytest.raises(KeeperError, match=r"the keeper at .* has gone"):
        KeeperClient(keeper.address).ping()


def test_a_keeper_that_was_killed_is_told(driver, victim):
    processes.send(driver.keeper, signal.SIGKILL)
    with pytest.raises(KeeperError, match="start the run again"):
        driver.client.register_process(victim.pid)
    driver.close()


def test_a_keeper_that_does_not_answer_is_told(driver):
    processes.send(driver.keeper, signal.SIGSTOP)
    with pytest.raises(DeadlineError, match=r"did not answer ping within 0\.2 s"):
        KeeperClient(driver.address, 0.2).ping()


def test_a_check_tells_that_the_keeper_was_killed(run_id, tmp_path, wait_until):
    keeper = Keeper.start(run_id, tmp_path)
    keeper.check()
    os.kill(keeper.pid, signal.SIGKILL)
    wait_until(lambda: not keeper.is_alive())
    with pytest.raises(KeeperError, match=r"^the keeper was killed by SIGKILL; .*: start it again$"):
        keeper.check()
    keeper.close(60)


def test_a_check_tells_that_the_keeper_is_stopped(run_id, tmp_path, wait_until):
    def trouble():
        try:
            return keeper.check()
        except KeeperError as error:
            return str(error)

    keeper = Keeper.start(run_id, tmp_path, health_deadline_s=0.2)
    os.kill(keeper.pid, signal.SIGSTOP)
    wait_until(trouble)
    assert trouble().startswith("the keeper stopped answering for 0.2 s: python")
    keeper.close(0.1)
    assert not keeper.is_alive()


def test_a_long_temporary_folder_does_not_break_the_socket(run_id, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 30)))
    keeper = Keeper.start(run_id, tmp_path)
    keeper.close(60)
    with pytest.raises(ResourceError, match="too long"):
        Keeper.start("x" * 100, tmp_path)


@pytest.mark.parametrize("run_id", ["", "a-b", "a/b", "*"])
def test_run_ids_that_could_match_other_runs_are_refused(run_id, tmp_path):
    with pytest.raises(ValueError, match="must be letters, digits and underscores"):
        Keeper.start(run_id, tmp_path)
