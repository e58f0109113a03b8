"""Trainer ranks of any layout: as a program one rank, `World` starts them all and tells them what to do.

A rank runs the real training backend and the real sync strategy `shm`. Calls and answers lie in a store, as pickles.
"""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import time
import traceback
from contextlib import ExitStack
from datetime import timedelta

import torch
from torch import distributed

from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.accelerators.network import LOOPBACK_ENVIRONMENT
from vime_core.config.schema import AcceleratorConfig
from vime_core.data.batching import build_update, pack, unpack
from vime_core.plugins.interfaces import TrainContext
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO
from vime_megatron import weights as weight_map
from vime_megatron.backend import MegatronBackend
from vime_megatron.config import MegatronConfig
from vime_vllm.config import ShmConfig
from vime_vllm.sync.segment import FOLDER
from vime_vllm.sync.shm import ShmSync

DEADLINE_S = 240.0
"""Of a call, the start of the ranks before the first one included."""
IDLE = timedelta(seconds=900)
"""Longest time that ranks wait for a call, and for each other."""
EXPORT_BUCKET_BYTES = 50_000
SEGMENT_BYTES = 100_000
"""Several buckets for every stage and share of experts, and tensors that are larger than one."""


class World:
    """Ranks of one number, each a process; a layout starts and ends within them."""

    def __init__(self, folder, size, run_id):
        self.size = size
        self._folder = folder
        self._run_id = run_id
        self._store = distributed.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        self._numbers = itertools.count()
        self._stack = ExitStack()
        environment = os.environ | LOOPBACK_ENVIRONMENT | {"VIME_RUN_ID": run_id, "VIME_PUSH_DEADLINE_S": "60"}
        self._processes = []
        for rank in range(size):
            errors = self._stack.enter_context(self._errors(rank).open("wb"))
            command = [sys.executable, __file__, str(rank), str(size), str(self._store.port)]
            self._processes.append(subprocess.Popen(command, stderr=errors, env=environment))
            self._stack.callback(self._processes[-1].wait)
            self._stack.callback(self._processes[-1].kill)

    def call(self, name, *arguments, deadline_s=DEADLINE_S):
        """Let all ranks call a method of `Rank`; the answer of each."""
        number = next(self._numbers)
        self._store.set(f"call {number}", pickle.dumps((name, arguments)))
        keys = [f"answer {number} {rank}" for rank in range(self.size)]
        end = time.monotonic() + deadline_s
        while not self._store.check(keys):
            for rank, process in enumerate(self._processes):
                if process.poll() is not None:
                    raise RuntimeError(f"rank {rank} failed:\n{self._errors(rank).read_text()[-3000:]}")
            if time.monotonic() > end:
                raise RuntimeError(f"the ranks did not answer {name} in time")
            time.sleep(0.01)
        return [pickle.loads(self._store.get(key)) for key in keys]

    def close(self):
        """End the processes, and remove the memory that they had no time to."""
        self._stack.close()
        for segment in FOLDER.glob(f"vime-{self._run_id}-*"):
            segment.unlink()

    def _errors(self, rank):
        return self._folder / f"errors_{rank}.txt"


class Rank:
    """What a rank can be told to do."""

    def __init__(self, rank, size):
        self._rank = rank
        self._size = size
        self._backend = None
        self._sync = None

    def start(self, model_path, family, hf_config, settings):
        """Build the model under a layout, with the weights of a folder."""
        self.stop()
        geometry = family.geometry(hf_config, None)
        config = MegatronConfig(dtype="float32", lr=1e-3, world_size=self._size, **settings)
        self._backend = MegatronBackend(
            TrainContext(
                rank=self._rank,
                world_size=self._size,
                config=config,
                model_path=model_path,
                geometry=geometry,
                tensor_map=family.tensor_map(geometry),
                accelerator=CpuAccelerator(AcceleratorConfig()),
                device="cpu",
                temperature=1.0,
                keep_reference=False,
                total_updates=10,
                seed=0,
            )
        )
        self._backend.start()
        self._sync = ShmSync(ShmConfig(), self._rank, self._size)
        self._sync._capacity = SEGMENT_BYTES

    def connect(self, endpoints):
        """See `SyncStrategy.connect`."""
        self._sync.connect(endpoints)

    def push(self, version):
        """Push; what rank 0 reports."""
        return self._sync.push(self._backend.weights(), version)

    def save(self, folder):
        """See `TrainBackend.save`."""
        self._backend.save(folder)

    def load(self, folder):
        """See `TrainBackend.load`."""
        self._backend.load(folder)

    @torch.no_grad()
    def load_but(self, folder, role, rank, fault):
        """`load`, after which one rank has a share of a parameter with this role that is not of the checkpoint."""
        shares = [weight for item, weight in self._backend._weights.held() if item.rule.role == role][:2]
        before = [share.clone() for share in shares]
        self._backend.load(folder)
        if self._rank != rank:
            return
        if fault == "stale":
            shares[0].copy_(before[0])
        else:
            loaded = [share.clone() for share in shares]
            shares[0].copy_(loaded[1])
            shares[1].copy_(loaded[0])

    def update(self, samples):
        """One optimizer update."""
        rank, size = self._backend.data_parallel()
        algorithm = GRPO(GRPOConfig())
        self._backend.update(build_update(samples, algorithm, max_tokens=64, ranks=size)[rank], algorithm)

    def logprobs(self, samples):
        """[R] of each sample, by this rank."""
        micro_batches = [pack(samples, range(len(samples)))]
        return unpack(micro_batches, self._backend.logprobs(micro_batches), samples)

    def stop(self):
        """End backend and sync strategy."""
        if self._backend is not None:
            self._sync.close()
            self._backend.close()
            self._backend = self._sync = None


def main(rank, size, port):
    """Join the other ranks and serve calls until the store ends."""
    torch.set_num_threads(1)
    weight_map.EXPORT_BUCKET_BYTES = EXPORT_BUCKET_BYTES
    store = distributed.TCPStore("127.0.0.1", port, size, is_master=False, timeout=IDLE)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=IDLE)
    served = Rank(rank, size)
    for number in itertools.count():
        name, arguments = pickle.loads(store.get(f"call {number}"))
        store.set(f"answer {number} {rank}", pickle.dumps(getattr(served, name)(*arguments)))


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        # Other ranks may be waited for by threads of gloo.
        os._exit(1)
