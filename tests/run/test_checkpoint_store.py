import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

import vime_core
from vime_core.errors import RunFolderError
from vime_core.run.checkpoint import CheckpointStore

FILES = {"trainer/rank0.distcp": b"weights" * 1000, "trainer/deep/optimizer": b"", "rng.bin": b"\x00\x01"}


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path, keep_last=2, config_fingerprint="abc")


def save(store, step):
    folder = store.begin(step)
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return store.commit(step, {"step": step, "data": {"epoch": 0, "position": 7}})


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_round_trip(store, tmp_path):
    assert store.latest() is None
    saved = save(store, 20)
    loaded = CheckpointStore(tmp_path, keep_last=1).latest()
    assert loaded == saved == store.load(20)
    assert loaded.state == {"step": 20, "data": {"epoch": 0, "position": 7}}
    assert (loaded.step, loaded.config_fingerprint) == (20, "abc")
    assert loaded.path == tmp_path / "step_000020"
    assert all((loaded.path / name).read_bytes() == content for name, content in FILES.items())


def test_the_last_ones_are_kept(store, tmp_path):
    for step in (1, 2, 10, 1_000_000):
        save(store, step)
    assert store.steps() == [10, 1_000_000]
    assert names(tmp_path) == ["step_000010", "step_1000000"]
    assert store.latest().step == 1_000_000


def test_the_old_one_goes_only_after_the_new_one_is_complete(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 1)
    monkeypatch.setattr("vime_core.run.checkpoint.sync_tree", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(store, 2)
    assert store.latest().step == 1
    monkeypatch.undo()
    save(store, 2)
    assert names(tmp_path) == ["step_000002"]


def test_what_is_not_committed_is_no_checkpoint(store, tmp_path):
    save(store, 1)
    (store.begin(2) / "half").write_bytes(b"x")
    assert store.latest().step == 1
    assert names(tmp_path) == [".step_000002.partial", "step_000001"]
    assert list(store.begin(3).iterdir()) == []
    assert names(tmp_path) == [".step_000003.partial", "step_000001"]
    store.clean()
    assert names(tmp_path) == ["step_000001"]


def test_a_checkpoint_is_never_overwritten(store):
    save(store, 1)
    with pytest.raises(RunFolderError, match="step_000001 exists: a checkpoint is never overwritten"):
        store.begin(1)


def test_state_that_json_would_change_silently_is_refused(store):
    for value in (float("nan"), object()):
        store.begin(1)
        with pytest.raises((ValueError, TypeError)):
            store.commit(1, {"a": value})
    assert store.steps() == []


def remove(path):
    path.unlink()


def shorten(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "harm", "told"),
    [
        ("trainer/rank0.distcp", remove, "trainer/rank0.distcp is missing"),
        ("trainer/rank0.distcp", shorten, "trainer/rank0.distcp holds 6999 bytes instead of 7000"),
        ("trainer/rank0.distcp", flip, "trainer/rank0.distcp has another checksum than when it was saved"),
        ("trainer/deep/optimizer", remove, "trainer/deep/optimizer is missing"),
        ("state.json", remove, "state.json is missing"),
        ("state.json", shorten, "state.json holds"),
        ("manifest.json", remove, "manifest.json is missing"),
        ("manifest.json", shorten, "manifest.json is not readable"),
    ],
)
def test_damage_is_named_and_nothing_older_is_taken_silently(store, name, harm, told):
    save(store, 1)
    latest = save(store, 2)
    harm(latest.path / name)
    with pytest.raises(RunFolderError) as caught:
        store.latest()
    message = str(caught.value)
    assert message.startswith(f"checkpoint {latest.path} is damaged: {told}")
    assert message.endswith("; delete that folder to continue from step_000001, the last whole one before it")
    assert "\n" not in message
    assert store.load(1).step == 1


def test_no_earlier_one_is_whole(store):
    for step in (1, 2):
        flip(save(store, step).path / "rng.bin")
    with pytest.raises(RunFolderError, match="no earlier one is whole: start a new run"):
        store.latest()


@pytest.mark.parametrize("manifest", ["[]", "{}", '{"files": {"a": {}}}', '{"files": 3}', "\x80"])
def test_a_manifest_of_another_shape_is_named(store, manifest):
    path = save(store, 1).path
    (path / "manifest.json").write_text(manifest, encoding="latin-1")
    with pytest.raises(RunFolderError, match=r"manifest\.json is not readable"):
        store.latest()


def test_a_step_that_is_not_there(store):
    save(store, 3)
    with pytest.raises(RunFolderError, match="holds no checkpoint of step 4; there are: 3"):
        store.load(4)


def test_another_format_is_refused_by_one_line(store):
    path = save(store, 1).path / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2, "vime_version": "9.9"}))
    expected = (
        rf"has format 2, this vime \({vime_core.__version__}\) reads format 1: continue with .* that wrote it, 9\.9"
    )
    with pytest.raises(RunFolderError, match=expected):
        store.latest()


@pytest.mark.parametrize("keep_last", [1, 2])
@pytest.mark.parametrize("kill_in", ["begin", "write_manifest", "sync_tree", "rename", "rmtree"])
def test_a_process_killed_while_saving_leaves_a_whole_checkpoint(tmp_path, kill_in, keep_last):
    """SIGKILL at each stage: what looks like a checkpoint is whole, and saving goes on."""
    code = """
        import os, shutil, signal, sys
        from pathlib import Path
        from vime_core.run import checkpoint
        from vime_core.run.checkpoint import CheckpointStore

        def die(*args, **options):
            os.kill(os.getpid(), signal.SIGKILL)

        def delete_half(folder):
            os.unlink(folder / "weights")
            die()

        store = CheckpointStore(Path(sys.argv[1]), int(sys.argv[3]))
        for step in (1, 2, 3):
            folder = store.begin(step)
            (folder / "weights").write_bytes(b"w" * 100_000)
            if step == 3:
                kill_in = sys.argv[2]
                if kill_in == "begin":
                    die()
                owner = {"rename": os, "rmtree": shutil}.get(kill_in, checkpoint)
                setattr(owner, kill_in, delete_half if kill_in == "rmtree" else die)
            store.commit(step, {"step": step})
    """
    arguments = [str(tmp_path), kill_in, str(keep_last)]
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *arguments], timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL
    store = CheckpointStore(tmp_path, keep_last)
    newest = 3 if kill_in == "rmtree" else 2
    assert store.latest().step == newest
    assert [store.load(step).step for step in store.steps()] == store.steps()
    store.clean()
    folder = store.begin(4)
    (folder / "weights").write_bytes(b"w")
    store.commit(4, {"step": 4})
    assert store.latest().state == {"step": 4}
    assert store.steps() == [newest, 4][-keep_last:]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
