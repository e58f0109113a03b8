"""Forward and backward passes over micro-batches, through Megatron's schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vime_core.plugins.interfaces import LossInputs
from vime_megatron import mcore
from vime_megatron.logprobs import TokenLogprobs, Vocabulary, token_logprobs
from vime_megatron.packed import PackedSequences, lay_out
from vime_megatron.router import Router

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vime_core.plugins.interfaces import Algorithm, LossOutput
    from vime_core.types import Float32Array, MicroBatch
    from vime_megatron.model import PolicyModel
    from vime_megatron.ranks import Ranks


@dataclass(frozen=True, slots=True)
class MicroBatchResult:
    """What one micro-batch of an update gave."""

    output: LossOutput
    """Detached; sums over this micro-batch."""
    logprobs: Float32Array
    """[T]"""


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """The part of a micro-batch that the model sees, on its device."""

    token_ids: torch.Tensor
    position_ids: torch.Tensor
    packed: PackedSequences
    count: int
    """Tokens of the micro-batch; further ones are padding of the layout."""


class Passes:
    """Runs a model over micro-batches.

    Args:
        model: the model in Megatron's data-parallel wrapper.
        policy: the model itself.
        ranks: where this rank stands.
        vocab_size: tokens of the model, without padding.
        temperature: divides all logits.
        chunk_tokens: most tokens whose logits exist at one time.
        uniform_lengths: whether all micro-batches of a call, on all ranks, are padded to one length.
    """

    def __init__(
        self,
        model: mcore.DistributedDataParallel,
        policy: PolicyModel,
        ranks: Ranks,
        *,
        vocab_size: int,
        temperature: float,
        chunk_tokens: int,
        uniform_lengths: bool = False,
    ) -> None:
        self._model = model
        self._policy = policy
        self._ranks = ranks
        self._device = ranks.device
        self._vocab_size = vocab_size
        self._temperature = temperature
        self._chunk_tokens = chunk_tokens
        self._uniform_lengths = uniform_lengths

    @torch.no_grad()
    def logprobs(self, micro_batches: Sequence[MicroBatch]) -> list[Float32Array]:
        """[T] log-probs of each micro-batch, without gradient."""
        lengths = self._lengths(micro_batches)

        def collect(batch: DeviceBatch, hidden: torch.Tensor, **_: Any) -> Float32Array:
            return self._head(hidden, batch, entropy=False).logprobs.cpu().numpy()

        def step(batches: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[torch.Tensor, Callable[..., Any]]:
            batch = self._to_device(next(batches), next(lengths_left))
            return self._hidden(model, batch), partial(collect, batch)

        lengths_left = iter(lengths)
        return self._ranks.from_last_stage(self._run(step, micro_batches, lengths, forward_only=True))

    def gradients(
        self, micro_batches: Sequence[MicroBatch], algorithm: Algorithm, denominator: float
    ) -> list[MicroBatchResult]:
        """Add up the gradients of loss / denominator in the model's buffers, and reduce them over all ranks.

        Returns:
            One result a micro-batch on the last pipeline stage, none on the others.
        """
        entropy = algorithm.needs().entropy
        lengths = self._lengths(micro_batches)
        self._count_tokens(micro_batches)

        def loss(
            micro_batch: MicroBatch, batch: DeviceBatch, hidden: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor, MicroBatchResult]:
            values = self._head(hidden, batch, entropy=entropy)
            inputs = self._loss_inputs(micro_batch, values)
            output = algorithm.loss(inputs)
            logprobs = values.logprobs.detach().cpu().numpy()
            # The count only satisfies Megatron's interface: it is summed and not used.
            return (
                output.loss / denominator,
                inputs.loss_mask.sum().int(),
                MicroBatchResult(_detached(output), logprobs),
            )

        def step(batches: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[torch.Tensor, Callable[..., Any]]:
            micro_batch = next(batches)
            batch = self._to_device(micro_batch, next(lengths_left))
            return self._hidden(model, batch), partial(loss, micro_batch, batch)

        lengths_left = iter(lengths)
        return self._run(step, micro_batches, lengths, forward_only=False)

    def _run(
        self,
        step: Callable[..., Any],
        micro_batches: Sequence[MicroBatch],
        lengths: Sequence[int],
        *,
        forward_only: bool,
    ) -> list[Any]:
        if not micro_batches:
            return []
        return mcore.get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=iter(micro_batches),
            model=[self._model],
            num_microbatches=len(micro_batches),
            seq_length=max(lengths),
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _hidden(self, model: torch.nn.Module, batch: DeviceBatch) -> torch.Tensor:
        return model(batch.token_ids, batch.position_ids, batch.packed, self._padding(batch))

    def _padding(self, batch: DeviceBatch) -> torch.Tensor | None:
        """[1, T of this rank]: which of its tokens are padding; None where nobody asks."""
        if not self._policy.config.moe_aux_loss_coeff:
            return None
        padding = torch.arange(len(batch.token_ids), device=self._device) >= batch.count
        layout = self._ranks.layout
        return (padding.chunk(layout.tensor)[self._ranks.here.tensor] if layout.sequence else padding)[None]

    def _head(self, hidden: torch.Tensor, batch: DeviceBatch, *, entropy: bool) -> TokenLogprobs:
        """Log-probs and entropies of the micro-batch's own tokens."""
        weight = self._policy.output_weight()
        layout, rank = self._ranks.layout, self._ranks.here.tensor
        tokens = (
            mcore.gather_from_sequence_parallel_region(hidden)
            if layout.sequence
            else mcore.copy_to_tensor_model_parallel_region(hidden)
        )
        return token_logprobs(
            tokens.squeeze(1)[: batch.count],
            weight,
            batch.token_ids[: batch.count],
            batch.position_ids[: batch.count],
            Vocabulary(rank * len(weight), self._vocab_size, self._ranks.tensor_group if layout.tensor > 1 else None),
            temperature=self._temperature,
            chunk_tokens=self._chunk_tokens,
            entropy=entropy,
        )

    def _lengths(self, micro_batches: Sequence[MicroBatch]) -> list[int]:
        """Tokens of each micro-batch with padding, which sequence parallelism shares out equally."""
        lengths = [len(batch.token_ids) for batch in micro_batches]
        if self._uniform_lengths:
            lengths = [self._ranks.max_over_data(max(lengths, default=0))] * len(lengths)
        multiple = self._ranks.layout.tensor if self._ranks.layout.sequence else 1
        return [-(-length // multiple) * multiple for length in lengths]

    def _count_tokens(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Tell routers with an auxiliary loss how many tokens the update has."""
        routers = [module for module in self._policy.modules() if isinstance(module, Router)]
        if routers and self._policy.config.moe_aux_loss_coeff:
            count = self._ranks.sum_over_data(sum(len(batch.token_ids) for batch in micro_batches))
            for router in routers:
                router.update_tokens = count

    def _to_device(self, batch: MicroBatch, length: int) -> DeviceBatch:
        """The micro-batch on its device, with one more sequence of token 0 to make up `length`."""
        count = len(batch.token_ids)
        token_ids, position_ids, offsets = batch.token_ids, batch.position_ids, batch.cu_seqlens
        if length > count:
            padding = np.arange(length - count, dtype=position_ids.dtype)
            token_ids = np.concatenate([token_ids, np.zeros_like(padding)])
            position_ids = np.concatenate([position_ids, padding])
            offsets = np.append(offsets, np.int32(length))
        return DeviceBatch(
            token_ids=self._tensor(token_ids),
            position_ids=self._tensor(position_ids),
            packed=lay_out(offsets, self._device),
            count=count,
        )

    def _loss_inputs(self, batch: MicroBatch, values: TokenLogprobs) -> LossInputs:
        return LossInputs(
            logprobs=values.logprobs,
            entropy=values.entropy,
            loss_mask=self._tensor(batch.loss_mask),
            advantages=self._tensor(batch.advantages),
            rollout_logprobs=self._tensor(batch.rollout_logprobs),
            old_logprobs=None if batch.old_logprobs is None else self._tensor(batch.old_logprobs),
            ref_logprobs=None if batch.ref_logprobs is None else self._tensor(batch.ref_logprobs),
            cu_seqlens=self._tensor(batch.cu_seqlens),
        )

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.tensor(array, device=self._device)


def _detached(output: LossOutput) -> LossOutput:
    """Megatron divides the loss that it gets in place; keep copies."""
    metrics = {
        name: replace(
            metric,
            total=metric.total.detach().clone(),
            count=None if metric.count is None else metric.count.detach().clone(),
        )
        for name, metric in output.metrics.items()
    }
    return replace(output, loss=output.loss.detach().clone(), metrics=metrics)
