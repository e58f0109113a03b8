"""Forward and backward passes over micro-batches, through Megatron's schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from vime_core.plugins.interfaces import LossInputs
from vime_megatron import mcore
from vime_megatron.logprobs import TokenLogprobs, Vocabulary, token_logprobs
from vime_megatron.packed import PackedSequences, lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from vime_core.plugins.interfaces import Algorithm, LossOutput
    from vime_core.types import Float32Array, MicroBatch
    from vime_megatron.model import PolicyModel


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


class Passes:
    """Runs a model over micro-batches.

    Args:
        model: the model in Megatron's data-parallel wrapper.
        policy: the model itself.
        device: of the model.
        temperature: divides all logits.
        chunk_tokens: most tokens whose logits exist at one time.
    """

    def __init__(
        self,
        model: mcore.DistributedDataParallel,
        policy: PolicyModel,
        device: torch.device,
        *,
        temperature: float,
        chunk_tokens: int,
    ) -> None:
        self._model = model
        self._policy = policy
        self._device = device
        self._temperature = temperature
        self._chunk_tokens = chunk_tokens

    @torch.no_grad()
    def logprobs(self, micro_batches: Sequence[MicroBatch]) -> list[Float32Array]:
        """[T] log-probs of each micro-batch, without gradient."""

        def collect(batch: DeviceBatch, hidden: torch.Tensor, **_: Any) -> Float32Array:
            return self._head(hidden, batch, entropy=False).logprobs.cpu().numpy()

        def step(batches: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[torch.Tensor, Callable[..., Any]]:
            batch = self._to_device(next(batches))
            return self._hidden(model, batch), partial(collect, batch)

        return self._run(step, micro_batches, forward_only=True)

    def gradients(
        self, micro_batches: Sequence[MicroBatch], algorithm: Algorithm, denominator: float
    ) -> list[MicroBatchResult]:
        """Add up the gradients of loss / denominator in the model's buffers, and reduce them over all ranks."""
        entropy = algorithm.needs().entropy

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
            batch = self._to_device(micro_batch)
            return self._hidden(model, batch), partial(loss, micro_batch, batch)

        return self._run(step, micro_batches, forward_only=False)

    def _run(self, step: Callable[..., Any], micro_batches: Sequence[MicroBatch], *, forward_only: bool) -> list[Any]:
        if not micro_batches:
            return []
        return mcore.get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=iter(micro_batches),
            model=[self._model],
            num_microbatches=len(micro_batches),
            seq_length=max(len(batch.token_ids) for batch in micro_batches),
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _hidden(self, model: torch.nn.Module, batch: DeviceBatch) -> torch.Tensor:
        return model(batch.token_ids, batch.position_ids, batch.packed)

    def _head(self, hidden: torch.Tensor, batch: DeviceBatch, *, entropy: bool) -> TokenLogprobs:
        weight = self._policy.output_weight()
        return token_logprobs(
            mcore.copy_to_tensor_model_parallel_region(hidden.squeeze(1)),
            weight,
            batch.token_ids,
            batch.position_ids,
            Vocabulary(0, self._policy.vocab_size, None),
            temperature=self._temperature,
            chunk_tokens=self._chunk_tokens,
            entropy=entropy,
        )

    def _to_device(self, batch: MicroBatch) -> DeviceBatch:
        return DeviceBatch(
            token_ids=self._tensor(batch.token_ids),
            position_ids=self._tensor(batch.position_ids),
            packed=lay_out(batch.cu_seqlens, self._device),
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
