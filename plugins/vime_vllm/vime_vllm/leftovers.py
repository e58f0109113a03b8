"""What a vLLM server leaves behind when it is killed, given names by which it can be found and deleted.

vLLM's processes talk through shared memory with random names and sockets in the temporary folder. Only they know them,
and they clean up only when they end in order.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing import shared_memory
from pathlib import Path

from vime_core.cluster.keeper import KeeperClient
from vime_vllm.sync.segment import FOLDER

PREFIX_VARIABLE = "VIME_SEGMENT_PREFIX"
"""Environment variable: what names of a server's shared memory begin with."""
RANDOM_LETTERS = 16
RENDEZVOUS = "vllm_dist_*"
"""Files in the temporary folder; with tensor parallelism on the CPU, segments are named after them."""


class Leftovers:
    """The temporary folder and the shared-memory segments of one server.

    Segments are named `vime-<run id>-...`, which is what the keeper deletes when the driver vanishes.

    Args:
        run_id: of the run.
        name: of the engine.
        keeper: address of the node's keeper.
    """

    def __init__(self, run_id: str, name: str, keeper: str) -> None:
        self._prefix = f"vime-{run_id}-{name}-"
        self._folder = Path(tempfile.gettempdir()) / f"vime-{run_id}-{name}"
        self._keeper = keeper
        self._named_by_vllm: list[Path] = []

    def create(self) -> None:
        """Make the folder, which the keeper deletes when the driver vanishes."""
        self._folder.mkdir(mode=0o700)
        KeeperClient(self._keeper).register_path(self._folder)

    def find(self) -> None:
        """Remember the segments whose names vLLM chose; to be called once the server answers."""
        for rendezvous in self._folder.glob(RENDEZVOUS):
            self._named_by_vllm += FOLDER.glob(f"{rendezvous.name}-*")
        for path in self._named_by_vllm:
            KeeperClient(self._keeper).register_path(path)

    @property
    def environment(self) -> dict[str, str]:
        """What makes a server keep to it."""
        return {"TMPDIR": str(self._folder), PREFIX_VARIABLE: self._prefix}

    def delete(self) -> None:
        """Delete what is left once the server has ended; safe to call twice."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for path in (*FOLDER.glob(f"{self._prefix}*"), *self._named_by_vllm):
            path.unlink(missing_ok=True)


def name_segments() -> None:
    """Make this process name its shared memory as `PREFIX_VARIABLE` says, if it is set.

    Called in every process of a server. `multiprocessing.shared_memory` has no setting for the name it makes up.
    """
    prefix = os.environ.get(PREFIX_VARIABLE)
    if prefix:
        names = vars(shared_memory)
        names["_SHM_NAME_PREFIX"] = f"/{prefix}"
        names["_SHM_SAFE_NAME_LENGTH"] = len(prefix) + 1 + RANDOM_LETTERS
