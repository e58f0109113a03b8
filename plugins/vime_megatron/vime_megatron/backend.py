"""The training backend: one rank of Megatron-Core."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from vime_core.errors import TrainerError
from vime_core.types import UpdateReport
from vime_megatron import checkpoint, compat, mcore, noise
from vime_megatron.layout import plan_layout
from vime_megatron.metrics import reduce_metrics
from vime_megatron.model import build_model, uniform_lengths
from vime_megatron.optimizer import build_optimizer, gradient_norm, set_rates, step
from vime_megatron.passes import Passes
from vime_megatron.ranks import Ranks, leave_groups
from vime_megatron.reference import ReferenceWeights
from vime_megatron.schedule import learning_rate
from vime_megatron.weights import WeightMap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from vime_core.plugins.interfaces import Algorithm, TrainContext
    from vime_core.types import Float32Array, MicroBatch, UpdateBatch
    from vime_megatron.config import MegatronConfig


class MegatronBackend:
    """Implements `vime_core.plugins.interfaces.TrainBackend`; every method is collective."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._config: MegatronConfig = context.config
        self._device = torch.device(context.device)
        self._dtype: torch.dtype = getattr(torch, self._config.dtype)
        self._updates = 0
        self._reference: ReferenceWeights | None = None

    def start(self) -> None:
        """Build the model, load the weights, make the optimizer.

        Raises:
            ModelError: when the model cannot be built here or its weights do not fit.
        """
        compat.install()
        noise.ignore(noise.IN_CALLS)
        context = self._context
        layout = plan_layout(self._config, context.geometry)
        if layout.tensor > 1:
            compat.overlap_communication()
        self._ranks = Ranks(layout, self._device)
        torch.manual_seed(context.seed + context.rank)
        # Without dropout nothing draws from Megatron's device generators.
        mcore.model_parallel_cuda_manual_seed(context.seed, inference_rng_tracker=True)
        policy = build_model(context.geometry, self._dtype, self._ranks, self._config)
        self._weights = WeightMap(policy, context.geometry, context.tensor_map, self._ranks)
        self._weights.load(context.model_path)
        self._model = mcore.DistributedDataParallel(
            policy.config,
            mcore.DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
            policy,
        )
        self._optimizer = build_optimizer(self._model, self._config, self._dtype)
        self._passes = Passes(
            self._model,
            policy,
            self._ranks,
            vocab_size=context.geometry.vocab_size,
            temperature=context.temperature,
            chunk_tokens=self._config.logprob_chunk_tokens,
            uniform_lengths=uniform_lengths(context.geometry, layout, self._config),
        )
        if context.keep_reference:
            self._reference = ReferenceWeights(self._model)

    def data_parallel(self) -> tuple[int, int]:
        """(rank, size) among data-parallel ranks."""
        return self._ranks.data_group.rank(), self._ranks.data_group.size()

    def logprobs(self, micro_batches: Sequence[MicroBatch], *, reference: bool = False) -> list[Float32Array]:
        """[T] log-probs of each micro-batch, without gradient.

        Raises:
            TrainerError: for `reference` when the context did not ask to keep it.
        """
        if not reference:
            return self._passes.logprobs(micro_batches)
        if self._reference is None:
            raise TrainerError("the reference policy was not kept: the algorithm must declare that it needs it")
        with self._reference.in_place():
            return self._passes.logprobs(micro_batches)

    def update(self, batch: UpdateBatch, algorithm: Algorithm) -> UpdateReport:
        """One optimizer update.

        Raises:
            TrainerError: when loss or gradient norm is not finite; the weights are then as they were.
        """
        lr = learning_rate(self._updates, self._context.total_updates, self._config)
        set_rates(self._optimizer, lr, self._config.weight_decay)
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()
        results = self._passes.gradients(batch.micro_batches, algorithm, batch.denominator)
        reported = None
        if self._ranks.is_last_stage:
            outputs = [result.output for result in results]
            metrics = reduce_metrics(outputs, batch.denominator, self._ranks.data_group, self._device)
            reported = (metrics, [result.logprobs for result in results])
        metrics, logprobs = self._ranks.from_last_stage(reported)
        norm = gradient_norm(self._optimizer)
        self._require_finite(metrics["loss"], norm)
        step(self._optimizer, norm, self._config.clip_grad)
        self._updates += 1
        return UpdateReport(
            metrics={**metrics, "grad_norm": norm, "lr": lr},
            logprobs=logprobs,
        )

    def _require_finite(self, loss: float, norm: float) -> None:
        for name, value in (("loss", loss), ("gradient norm", norm)):
            if not math.isfinite(value):
                raise TrainerError(
                    f"the {name} of optimizer update {self._updates} is {value}, the weights are unchanged: lower "
                    "train.lr, or look for the cause in the step's rollouts"
                )

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and tensors, layer by layer; valid until the next item."""
        return self._weights.export()

    def save(self, folder: Path) -> None:
        """Write weights, optimizer, schedule and random states."""
        checkpoint.save(folder, self._model, self._optimizer, self._updates)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            RunFolderError: when the checkpoint is missing, damaged or of another model.
        """
        self._updates = checkpoint.load(folder, self._model, self._optimizer)

    def sleep(self) -> None:
        """Free the gradient buffers, four bytes a parameter; weights and optimizer stay."""
        if self._context.accelerator.can_sleep:
            self._model.offload_grad_buffers(synchronize=compat.has_device())

    def wake(self) -> None:
        """Undo `sleep`."""
        if self._context.accelerator.can_sleep:
            self._model.restore_grad_buffers(synchronize=compat.has_device())

    def close(self) -> None:
        """Leave Megatron's process groups; safe to call twice."""
        leave_groups()
