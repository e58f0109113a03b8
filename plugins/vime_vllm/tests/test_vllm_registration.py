"""What is registered, and that registering imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"torch", "ray", "vllm", "vllm_router", "aiohttp", "transformers"}


def _run(program):
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_hooks_import_nothing_heavy():
    loaded = _run(
        "import sys; from vime_vllm import hooks; hooks.vime_rollout_backends(); hooks.vime_sync_strategies(); "
        "print(*sys.modules)"
    )
    assert not HEAVY & set(loaded.split())


def test_entries_name_what_can_be_loaded():
    from vime_vllm import hooks
    from vime_vllm.backend import VllmBackend
    from vime_vllm.sync.ipc import IpcSync
    from vime_vllm.sync.shm import ShmSync

    [backend], [sync, ipc] = hooks.vime_rollout_backends(), hooks.vime_sync_strategies()
    assert (backend.name, backend.load()) == ("vllm", VllmBackend)
    assert (sync.name, sync.load()) == ("shm", ShmSync)
    assert (ipc.name, ipc.load(), ipc.config().name) == ("ipc", IpcSync, "ipc")
    assert backend.unavailable() is None
    assert sync.rollout_backends == {"vllm"}
    assert backend.config().name == "vllm"
    assert sync.config().name == "shm"


def test_what_is_changed_in_vllm_still_fits_the_installed_one(model_folder):
    """One process for both, as importing vLLM takes most of the time.

    vLLM calls the entry point more than once in some processes, and refuses a second engine of one name.
    `server.fork_cpu_processes` replaces what makes vLLM's CPU platform spawn.
    """
    program = f"""
import os
from importlib.metadata import entry_points
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory
from vime_vllm.receiver import transfer_engine
[entry] = entry_points(group="vllm.general_plugins", name="vime_vllm")
entry.load()()
entry.load()()
print("receivers", *(Factory._registry[name]().__name__ for name in ("shm", transfer_engine("ipc"))))

from vime_vllm.server import fork_cpu_processes
from vllm.engine.arg_utils import EngineArgs
fork_cpu_processes()
EngineArgs(model="{model_folder}", skip_tokenizer_init=True, dtype="float32").create_engine_config()
print("method", os.environ["VLLM_WORKER_MULTIPROC_METHOD"])
"""
    printed = _run(program)
    assert "receivers ShmReceiver IpcReceiver" in printed
    assert "method fork" in printed
