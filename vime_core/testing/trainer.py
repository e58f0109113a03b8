"""A training backend that fits on a page: each token is predicted from the one before alone. Needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vime_core.errors import RunFolderError, TrainerError
from vime_core.models.stacked import open_weights
from vime_core.models.tensors import tensor_shapes
from vime_core.plugins.interfaces import LossInputs
from vime_core.types import UpdateReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from vime_core.plugins.interfaces import Algorithm, LossOutput, TrainContext
    from vime_core.types import Float32Array, MicroBatch, UpdateBatch

EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"


class BigramTrainer:
    """Implements `TrainBackend` on one rank: log-probs come from embedding and output alone, by gradient descent."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._weights: dict[str, torch.nn.Parameter] = {}
        self._reference: dict[str, torch.Tensor] = {}

    def start(self) -> None:
        """Read all tensors of the folder."""
        wanted = tensor_shapes(self._context.geometry, self._context.tensor_map)
        found = open_weights(self._context.model_path, self._context.geometry, self._context.tensor_map).load(wanted)
        self._weights = {name: torch.nn.Parameter(tensor.float()) for name, tensor in found}
        if self._context.keep_reference:
            self._reference = {name: weight.detach().clone() for name, weight in self._weights.items()}

    def data_parallel(self) -> tuple[int, int]:
        """The only rank."""
        return 0, 1

    def logprobs(self, micro_batches: Sequence[MicroBatch], *, reference: bool = False) -> list[Float32Array]:
        """[T] for each micro-batch."""
        if reference and not self._reference:
            raise TrainerError("the reference policy was not kept")
        weights = self._reference if reference else self._weights
        with torch.no_grad():
            return [self._logprobs(batch, weights)[0].numpy() for batch in micro_batches]

    def update(self, batch: UpdateBatch, algorithm: Algorithm) -> UpdateReport:
        """One step of gradient descent."""
        outputs: list[LossOutput] = []
        logprobs = []
        for micro in batch.micro_batches:
            tokens, entropy = self._logprobs(micro, self._weights)
            output = algorithm.loss(_inputs(micro, tokens, entropy))
            (output.loss / batch.denominator).backward()
            outputs.append(output)
            logprobs.append(tokens.detach().numpy())
        norm = torch.nn.utils.clip_grad_norm_(
            [weight for weight in self._weights.values() if weight.grad is not None], self._context.config.clip_grad
        )
        with torch.no_grad():
            for weight in self._weights.values():
                if weight.grad is not None:
                    weight.sub_(self._context.config.lr * weight.grad)
                    weight.grad = None
        metrics = {**_means(outputs, batch.denominator), "grad_norm": float(norm), "lr": self._context.config.lr}
        return UpdateReport(metrics, logprobs)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All tensors by their names in the checkpoint."""
        yield from ((name, weight.detach()) for name, weight in self._weights.items())

    def save(self, folder: Path) -> None:
        """Write one file; gradient descent has no other state."""
        torch.save({name: weight.detach() for name, weight in self._weights.items()}, folder / "weights.pt")

    def load(self, folder: Path) -> None:
        """Read it again."""
        file = folder / "weights.pt"
        if not file.is_file():
            raise RunFolderError(f"{folder} holds no checkpoint of this backend")
        for name, tensor in torch.load(file, weights_only=True).items():
            self._weights[name].data = tensor

    def sleep(self) -> None:
        """The weights are small enough to stay."""

    def wake(self) -> None:
        """Nothing was put away."""

    def close(self) -> None:
        """Let the weights go."""
        self._weights = {}

    def _logprobs(self, batch: MicroBatch, weights: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-probs, entropy), [T] each; 0 at the first token of a sequence."""
        tokens = torch.from_numpy(batch.token_ids)
        before = torch.cat([tokens[:1], tokens[:-1]])
        logits = weights[EMBEDDING][before] @ weights[OUTPUT].T / self._context.temperature
        distribution = logits.log_softmax(-1)
        entropy = -(distribution.exp() * distribution).sum(-1)
        first = torch.from_numpy(batch.position_ids) == 0
        chosen = distribution.gather(1, tokens[:, None])[:, 0]
        return chosen.masked_fill(first, 0.0), entropy.masked_fill(first, 0.0)


def _inputs(batch: MicroBatch, logprobs: torch.Tensor, entropy: torch.Tensor) -> LossInputs:
    old, ref = batch.old_logprobs, batch.ref_logprobs
    return LossInputs(
        logprobs=logprobs,
        entropy=entropy,
        loss_mask=torch.from_numpy(batch.loss_mask),
        advantages=torch.from_numpy(batch.advantages),
        rollout_logprobs=torch.from_numpy(batch.rollout_logprobs),
        old_logprobs=None if old is None else torch.from_numpy(old),
        ref_logprobs=None if ref is None else torch.from_numpy(ref),
        cu_seqlens=torch.from_numpy(batch.cu_seqlens),
    )


def _means(outputs: Sequence[LossOutput], denominator: float) -> dict[str, float]:
    means = {"loss": sum(float(output.loss.detach()) for output in outputs) / denominator}
    for name in outputs[0].metrics:
        parts = [output.metrics[name] for output in outputs]
        counts = [part.count for part in parts if part.count is not None]
        total = sum(float(part.total) for part in parts)
        means[name] = total / (sum(float(count) for count in counts) if counts else denominator)
    return means
