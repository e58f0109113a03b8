"""Megatron's forward pass on a device beside that of transformers: `compare` starts both, each a process of its own.

The models are the tiny ones of their families with random weights; three sequences are packed into one micro-batch, so
attention between them would show. transformers computes in float32 on the CPU, one sequence after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.accelerators.network import LOOPBACK_ENVIRONMENT
from vime_core.plugins.manager import load_plugins

if TYPE_CHECKING:
    from vime_core.plugins.interfaces import Accelerator

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = ("qwen3", "qwen3_moe")
"""Dense, and with experts."""
LENGTHS = (5, 33, 70)
"""Tokens of each sequence."""
SEED = 3
SPREAD = 0.08
"""Standard deviation of the weights: log-probs that differ by several units from token to token."""
DEADLINE_S = 240.0


class ForwardFault(Exception):
    """A process did not tell its log-probs; the message says why."""


def write(family: str, folder: Path) -> list[float]:
    """Write a family's model, and return the log-probs that transformers gives: of all tokens but each first one."""
    return _told(["write", family, str(folder)], os.environ)


def forward(accelerator: Accelerator, dtype: str, family: str, folder: Path) -> list[float]:
    """The log-probs that Megatron gives on a device, in the order of `write`."""
    environment = os.environ | LOOPBACK_ENVIRONMENT | accelerator.child_environment([0], 1)
    return _told(["forward", family, str(folder), accelerator.name, dtype], environment)


def _told(arguments: list[str], environment: Any) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu_forward", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no output")
        raise ForwardFault(f"{' '.join(arguments[:2])}: {last}")
    logprobs: list[float] = json.loads(done.stdout.splitlines()[-1])
    return logprobs


def _family(name: str) -> Any:
    return load_plugins().select("model", name).load()()


def _sequences(vocabulary: int) -> Any:
    import torch

    rng = torch.Generator().manual_seed(SEED)
    return [torch.randint(0, vocabulary, (length,), generator=rng) for length in LENGTHS]


def _write(name: str, folder: Path) -> list[float]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = _family(name).tiny()
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if "norm" in parameter:
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0.0, SPREAD)
        model.save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps(config))
        found: list[float] = []
        for tokens in _sequences(config["vocab_size"]):
            logprobs = model(tokens[None]).logits[0, :-1].float().log_softmax(-1)
            found += logprobs.gather(1, tokens[1:, None]).squeeze(1).tolist()
    return found


def _forward(name: str, folder: Path, accelerator_name: str, dtype: str) -> list[float]:
    import numpy as np
    from torch import distributed

    from vime_core.config.schema import AcceleratorConfig
    from vime_core.plugins.interfaces import TrainContext
    from vime_core.types import MicroBatch
    from vime_megatron.backend import MegatronBackend
    from vime_megatron.config import MegatronConfig

    chosen = load_plugins().select("accelerator", accelerator_name)
    accelerator: Accelerator = chosen.load()(AcceleratorConfig(name=accelerator_name))
    accelerator.prepare_process(1)
    distributed.init_process_group(accelerator.torch_backend, store=distributed.HashStore(), rank=0, world_size=1)
    family, config = _family(name), json.loads((folder / "config.json").read_text())
    geometry = family.geometry(config, None)
    context = TrainContext(
        rank=0,
        world_size=1,
        config=MegatronConfig(dtype=dtype),
        model_path=folder,
        geometry=geometry,
        tensor_map=family.tensor_map(geometry),
        accelerator=accelerator,
        device=accelerator.device(0),
        temperature=1.0,
        keep_reference=False,
        total_updates=1,
        seed=SEED,
    )
    backend = MegatronBackend(context)
    backend.start()
    total = sum(LENGTHS)
    batch = MicroBatch(
        token_ids=np.concatenate([tokens.numpy() for tokens in _sequences(geometry.vocab_size)]),
        position_ids=np.concatenate([np.arange(length) for length in LENGTHS]),
        cu_seqlens=np.cumsum([0, *LENGTHS]).astype(np.int32),
        sample_rows=np.arange(len(LENGTHS)),
        loss_mask=np.ones(total, bool),
        advantages=np.zeros(total, np.float32),
        rollout_logprobs=np.zeros(total, np.float32),
    )
    [logprobs] = backend.logprobs([batch])
    backend.close()
    distributed.destroy_process_group()
    return logprobs[batch.position_ids > 0].tolist()


if __name__ == "__main__":
    role, name, folder, *rest = sys.argv[1:]
    print(json.dumps(_write(name, Path(folder)) if role == "write" else _forward(name, Path(folder), *rest)))
