"""Runs training backends on one rank of several: `python ranks_program.py RANK WORLD_SIZE PORT FOLDER`.

FOLDER/job.pkl holds a list of scenarios, each a list of (context, calls); FOLDER/result_RANK.pkl gets the results.
Tests load this module too: to start the ranks, and to run the same calls in their own process.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from vime_megatron import mcore
from vime_megatron import weights as weight_map
from vime_megatron.backend import MegatronBackend
from vime_megatron.logprobs import Vocabulary, token_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.interfaces import TrainContext

DEADLINE = timedelta(seconds=180)
BUCKET_BYTES = 50_000
"""Of exports: several buckets for every stage and share of experts, and parameters that are larger than one."""


def run_ranks(folder: Path, job: dict[str, Any], size: int, *, deadline_s: float) -> list[dict[str, Any]]:
    """Run a job on so many ranks of their own processes; the results of each rank.

    Raises:
        RuntimeError: with the end of what a failed rank wrote.
    """
    (folder / "job.pkl").write_bytes(pickle.dumps(job))
    store = distributed.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
    with ExitStack() as stack:
        processes = []
        for rank in range(size):
            errors = stack.enter_context((folder / f"errors_{rank}.txt").open("wb"))
            command = [sys.executable, __file__, str(rank), str(size), str(store.port), str(folder)]
            processes.append(subprocess.Popen(command, stderr=errors))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].kill)
        _wait(processes, folder, time.monotonic() + deadline_s)
    return [pickle.loads((folder / f"result_{rank}.pkl").read_bytes()) for rank in range(size)]


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, deadline: float) -> None:
    """Until all have ended well; the first that fails tells why, for the others then wait for it in vain."""
    while any(process.poll() is None for process in processes):
        failed = [rank for rank, process in enumerate(processes) if process.poll() not in (None, 0)]
        if failed or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for rank, process in enumerate(processes):
        if process.poll() not in (None, 0):
            raise RuntimeError(f"rank {rank} failed:\n{(folder / f'errors_{rank}.txt').read_text()[-3000:]}")
    if any(process.poll() is None for process in processes):
        raise RuntimeError("the ranks did not end in time")


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
    if name in SABOTAGE:
        return SABOTAGE[name](backend)
    return getattr(backend, name)(*args)


@torch.no_grad()
def unmark_norms(backend: MegatronBackend) -> None:
    """Norms no longer say that each rank sees a part of the tokens."""
    for name, weight in backend._passes._policy.named_parameters():
        if "layernorm" in name:
            weight.sequence_parallel = False


@torch.no_grad()
def swap_experts(backend: MegatronBackend) -> None:
    """Two experts of the first layer with experts that this rank holds change places."""
    for layer in backend._passes._policy.decoder.layers:
        if isinstance(layer.mlp, mcore.MoELayer):
            first, second = layer.mlp.experts.local_experts[:2]
            for one, other in zip(first.parameters(), second.parameters(), strict=True):
                kept = one.clone()
                one.copy_(other)
                other.copy_(kept)
            return


@torch.no_grad()
def transpose_heads(backend: MegatronBackend) -> None:
    """In the first layer of each stage the first query head and the key head of each group change places."""
    policy = backend._passes._policy
    weight, size = policy.decoder.layers[0].self_attention.linear_qkv.weight, policy.config.kv_channels
    heads = policy.config.num_attention_heads // policy.config.num_query_groups
    groups = weight.view(-1, heads + 2, size, weight.shape[1])
    kept = groups[:, 0].clone()
    groups[:, 0] = groups[:, heads]
    groups[:, heads] = kept


def shift_groups(backend: MegatronBackend) -> None:
    """In the first layer with experts the first token of this rank's second expert is counted to its first.

    Not the last of the first one: that may be the last of a sequence, which nothing depends on.
    """
    for layer in backend._passes._policy.decoder.layers:
        if isinstance(layer.mlp, mcore.MoELayer):
            forward = layer.mlp.experts.forward

            def shifted(tokens: torch.Tensor, counts: torch.Tensor, probabilities: torch.Tensor) -> Any:
                wrong = counts.clone()
                wrong[:2] += counts[1].clamp(max=1) * torch.tensor([1, -1])
                return forward(tokens, wrong, probabilities)  # noqa: B023 - the loop ends here

            layer.mlp.experts.forward = shifted
            return


SABOTAGE = {
    "unmark_norms": unmark_norms,
    "swap_experts": swap_experts,
    "transpose_heads": transpose_heads,
    "shift_groups": shift_groups,
}
"""Faults that a comparison of layouts must catch."""


def main(rank: int, world_size: int, port: int, folder: Path) -> None:
    """Join the other ranks, run all scenarios of the job, write the results."""
    torch.set_num_threads(1)
    weight_map.EXPORT_BUCKET_BYTES = BUCKET_BYTES
    store = distributed.TCPStore("127.0.0.1", port, world_size, is_master=False, timeout=DEADLINE)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=DEADLINE)
    job = pickle.loads((folder / "job.pkl").read_bytes())
    results: dict[str, Any] = {}
    if "vocabulary" in job:
        results["vocabulary"] = vocabulary_parallel(**job.pop("vocabulary"))
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
