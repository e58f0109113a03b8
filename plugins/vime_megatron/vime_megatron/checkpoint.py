"""The trainer's part of a checkpoint: Megatron's `torch_dist` format, and this rank's random states.

<folder>/model/          weights and optimizer, in a layout that any number of ranks can read
<folder>/rank_00000.pt   random states of a rank, and the number of updates done
"""

from __future__ import annotations

import random
import shutil
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint import save as save_distributed
from torch.distributed.checkpoint.api import CheckpointException

from vime_core.errors import RunFolderError
from vime_megatron import compat, mcore

if TYPE_CHECKING:
    from pathlib import Path

MODEL_FOLDER = "model"

LAYOUT = {"distrib_optim_sharding_type": "fully_reshardable", "distrib_optim_fully_reshardable_mem_efficient": True}
"""Each optimizer tensor in the shape of its parameter, gathered on the first data-parallel rank over gloo."""

UNREADABLE = (
    mcore.CheckpointingException,
    CheckpointException,
    UnpicklingError,
    EOFError,
    KeyError,
    OSError,
    RuntimeError,
)
"""What Megatron and torch raise for files that are missing, cut off or of other tensors."""


UNWRITABLE = (CheckpointException, OSError, RuntimeError)
"""What torch raises for files that it cannot write; its zip writer knows no reason."""


class InProcessSave(mcore.TorchDistSaveShardedStrategy):
    """Megatron's `torch_dist` format, written by this process.

    Megatron's own writer starts a multiprocessing manager, which imports `__main__` again, and forks writers out of
    a process full of threads. Neither is safe in a Ray actor.
    """

    def __init__(self) -> None:
        super().__init__("torch_dist", 1)

    def save(self, sharded_state_dict: mcore.ShardedStateDict, checkpoint_dir: str) -> None:
        """Write this rank's shards; collective."""
        tensors, _, _ = mcore._replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict, self.keep_only_main_replica
        )
        save_distributed(
            mcore.mcore_to_pyt_state_dict(tensors, is_loading=False),
            storage_writer=FileSystemWriter(checkpoint_dir),
            planner=mcore.MCoreSavePlanner(
                dedup_replicated_tensors=not self.keep_only_main_replica, flatten_state_dict=False
            ),
        )


def save(folder: Path, model: mcore.DistributedDataParallel, optimizer: mcore.ChainedOptimizer, updates: int) -> None:
    """Write everything below `folder`; collective, returns when every rank is done.

    Raises:
        RunFolderError: when it cannot be written, e.g. because the disk is full.
    """
    states = folder / MODEL_FOLDER
    rank = {"updates": updates, "world_size": distributed.get_world_size(), "random": random_states()}
    try:
        if distributed.get_rank() == 0:
            states.mkdir(parents=True)
        distributed.barrier()
        mcore.dist_checkpointing.save(_state(model, optimizer, loading=False), str(states), InProcessSave())
        torch.save(rank, _rank_file(folder, distributed.get_rank()))
        distributed.barrier()
    except UNWRITABLE as error:
        free = shutil.disk_usage(folder.parent).free >> 20
        raise RunFolderError(
            f"cannot save to {folder} ({first_line(error)}; {free} MiB are free there); make room, then go on from "
            "the last checkpoint (resume.run)"
        ) from error


def load(folder: Path, model: mcore.DistributedDataParallel, optimizer: mcore.ChainedOptimizer) -> int:
    """Read what `save` wrote; collective.

    With another number of ranks than at saving time, random states stay as they are.

    Returns:
        Updates done.

    Raises:
        RunFolderError: when the checkpoint is missing, damaged or of another model.
    """
    try:
        first = torch.load(_rank_file(folder, 0), weights_only=True)
        state = mcore.dist_checkpointing.load(_state(model, optimizer, loading=True), str(folder / MODEL_FOLDER))
        if first["world_size"] == distributed.get_world_size():
            restore_random_states(torch.load(_rank_file(folder, distributed.get_rank()), weights_only=True)["random"])
    except UNREADABLE as error:
        raise RunFolderError(
            f"{folder} is damaged or of another model ({first_line(error)}); resume from another one, or start anew"
        ) from error
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(first["updates"])


def random_states() -> dict[str, Any]:
    """States of every random generator of this process, as plain values and tensors."""
    numpy = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": {
            **numpy,
            "state": {**numpy["state"], "key": torch.from_numpy(numpy["state"]["key"].astype(np.int64))},
        },
        "torch": torch.get_rng_state(),
        "devices": compat.device_random_states(),
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Undo `random_states`."""
    random.setstate(states["python"])
    numpy = states["numpy"]
    np.random.set_state({**numpy, "state": {**numpy["state"], "key": numpy["state"]["key"].numpy().astype(np.uint32)}})
    torch.set_rng_state(states["torch"])
    compat.restore_device_random_states(states["devices"])


def _state(
    model: mcore.DistributedDataParallel, optimizer: mcore.ChainedOptimizer, *, loading: bool
) -> mcore.ShardedStateDict:
    weights = model.module.sharded_state_dict()
    return {
        "model": weights,
        "optimizer": optimizer.sharded_state_dict(weights, is_loading=loading, metadata=dict(LAYOUT)),
    }


def first_line(error: BaseException) -> str:
    """What went wrong; torch wraps the errors of all ranks in one."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return line.split(". ")[0] if isinstance(error, UnpicklingError) else line  # torch goes on to advise the unsafe


def _rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank:05d}.pt"
