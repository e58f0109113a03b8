"""vLLM's API server as an engine runs it: `python -m vime_vllm.server <arguments of vLLM's server>`.

A server is three processes (API, engine core, worker), and on the CPU vLLM spawns the last two, so that each of them
imports vLLM anew: two thirds of the start. Here they are forked, as vLLM does by default on other platforms.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

METHOD_VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"
BINDING_VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"


def fork_cpu_processes() -> None:
    """Let vLLM's CPU platform fork.

    `CpuPlatform.check_and_update_config` (vllm/platforms/cpu.py:409 of 0.32.0) sets "spawn" because it hands each
    worker an OpenMP environment of its own. With thread binding off (`nobind`) there is none to hand over.
    """
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config

    def check_and_update_config(vllm_config: VllmConfig) -> None:
        original(vllm_config)
        os.environ[METHOD_VARIABLE] = "fork"

    CpuPlatform.check_and_update_config = staticmethod(check_and_update_config)
    os.environ[METHOD_VARIABLE] = "fork"


def main() -> None:
    """Serve until told to stop."""
    from vllm.entrypoints.launchers.api_server.entry import main as serve
    from vllm.platforms import current_platform

    if current_platform.is_cpu() and os.environ.get(BINDING_VARIABLE) == "nobind":
        fork_cpu_processes()
    serve()


if __name__ == "__main__":
    main()
