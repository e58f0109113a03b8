"""The router of mixture-of-experts layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import distributed

from vime_megatron import mcore

if TYPE_CHECKING:
    import torch


class Router(mcore.TopKRouter):
    """Softmax over all experts in float32, then the largest k.

    Megatron normalises by a softmax over the chosen logits, which for k = 1 it refuses. Here the chosen probabilities
    are divided by their sum, as transformers and vLLM do it.
    """

    def __init__(self, config: mcore.TransformerConfig, pg_collection: Any = None, *, normalize: bool) -> None:
        super().__init__(config=config, pg_collection=pg_collection)
        self.normalize = normalize
        self.update_tokens = 1
        """Tokens of the update on all data-parallel ranks, of which the auxiliary loss is a mean."""

    def routing(
        self, logits: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, 1, experts] logits to [T, experts] probabilities, 0 for experts not chosen, and which are chosen."""
        probabilities, chosen = super().routing(logits, padding_mask)
        if self.normalize:
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities, chosen

    def _apply_aux_loss(
        self, probs: torch.Tensor, scores_for_aux_loss: torch.Tensor, routing_map: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        """Add the gradient of the load-balancing loss (arXiv:2101.03961, equations 4 to 6).

        It is weight * E * sum_e f_e P_e with E experts, f the share of choices that fell on an expert and P its mean
        probability, of each micro-batch, averaged over the micro-batches of the update by their tokens.
        """
        counts = routing_map.sum(0, dtype=scores_for_aux_loss.dtype)
        distributed.all_reduce(counts, group=self.tp_cp_group)
        shares = counts / counts.sum()
        loss = (shares * scores_for_aux_loss.sum(0)).sum() * len(counts) * self.config.moe_aux_loss_coeff
        return mcore.MoEAuxLossAutoScaler.apply(probs, loss / self.update_tokens)
