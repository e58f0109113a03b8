"""Runs training backends on one rank of several: `python ranks_program.py RANK WORLD_SIZE PORT FOLDER`.

FOLDER/job.pkl holds a list of scenarios, each a list of (context, calls); FOLDER/result_RANK.pkl gets the results.
`conftest.py` loads this module too, to run the same calls in the test process.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from vime_megatron import mcore
from vime_megatron.backend import MegatronBackend
from vime_megatron.logprobs import Vocabulary, token_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.interfaces import TrainContext

DEADLINE = timedelta(seconds=180)


def execute(context: TrainContext, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Start a backend, make the calls, close it; one result a call."""
    backend = MegatronBackend(context)
    backend.start()
    try:
        return [_call(backend, *call) for call in calls]
    finally:
        backend.close()


def gradients(backend: MegatronBackend) -> dict[str, torch.Tensor]:
    """Reduced gradients by Hugging Face name, put together from the shares of all ranks."""
    model = backend._model
    state = mcore.parallel_state
    groups = [(buffer, state.get_data_parallel_group(with_context_parallel=True)) for buffer in model.buffers]
    groups += [(buffer, state.get_expert_data_parallel_group()) for buffer in model.expert_parallel_buffers]
    found: dict[int, torch.Tensor] = {}
    for buffer, group in groups:
        values = _reduced(buffer, group)
        for weight, (start, end, _) in buffer.param_index_map.items():
            found[id(weight)] = values[start:end].view(weight.shape)
    return {name: part.clone() for name, part in backend._weights.export(lambda weight: found[id(weight)])}


def _reduced(buffer: Any, group: distributed.ProcessGroup) -> torch.Tensor:
    """The whole gradient buffer: of each bucket every data-parallel rank has reduced one share."""
    buckets = []
    for bucket in buffer.buckets:
        shards = [shard.contiguous() for shard in bucket.grad_data.chunk(group.size())]
        every = [torch.empty_like(shard) for shard in shards]
        distributed.all_gather(every, shards[group.rank()], group=group)
        buckets.append(torch.cat(every))
    return torch.cat(buckets)


def weights(backend: MegatronBackend) -> dict[str, torch.Tensor]:
    """Copies of all weights by Hugging Face name."""
    return {name: tensor.clone() for name, tensor in backend.weights()}


def vocabulary_parallel(
    hidden: torch.Tensor, weight: torch.Tensor, token_ids: torch.Tensor, position_ids: torch.Tensor, size: int
) -> dict[str, torch.Tensor | None]:
    """Log-probs, entropies and gradients with the rows of `weight` shared out over all ranks."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    share = weight.chunk(ranks)[rank].clone().requires_grad_()
    hidden = hidden.clone().requires_grad_()
    values = token_logprobs(
        hidden,
        share,
        token_ids,
        position_ids,
        Vocabulary(rank * len(share), size, distributed.group.WORLD),
        temperature=0.7,
        chunk_tokens=3,
        entropy=True,
    )
    assert values.entropy is not None
    factors = torch.arange(len(token_ids), dtype=hidden.dtype)
    (values.logprobs * factors + values.entropy * factors.flip(0)).sum().backward()
    assert hidden.grad is not None
    distributed.all_reduce(hidden.grad)
    return {
        "logprobs": values.logprobs.detach(),
        "entropy": values.entropy.detach(),
        "hidden": hidden.grad,
        "weight": share.grad,
    }


def _call(backend: MegatronBackend, name: str, *args: Any, **kwargs: Any) -> Any:
    if name == "gradients":
        return gradients(backend)
    if name == "weights":
        return weights(backend)
    return getattr(backend, name)(*args)


def main(rank: int, world_size: int, port: int, folder: Path) -> None:
    """Join the other ranks, run all scenarios of the job, write the results."""
    torch.set_num_threads(1)
    store = distributed.TCPStore("127.0.0.1", port, world_size, is_master=False, timeout=DEADLINE)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=DEADLINE)
    job = pickle.loads((folder / "job.pkl").read_bytes())
    results: dict[str, Any] = {"vocabulary": vocabulary_parallel(**job.pop("vocabulary"))}
    for name, parts in job.items():
        results[name] = [
            execute(replace(context, rank=rank, world_size=world_size), [_of_rank(call, rank) for call in calls])
            for context, calls in parts
        ]
    (folder / f"result_{rank}.pkl").write_bytes(pickle.dumps(results))
    distributed.destroy_process_group()


def _of_rank(call: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """Lists among the arguments hold one entry a rank."""
    return tuple(argument[rank] if isinstance(argument, list) else argument for argument in call)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
