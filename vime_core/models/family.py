"""What a model family does. Public as `vime_core.plugins.interfaces.ModelFamily`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vime_core.models.geometry import ModelGeometry, TensorRule


class ModelFamily(Protocol):
    """Everything derives from the Hugging Face configuration; no torch."""

    def matches(self, hf_config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a model of this family."""
        ...

    def geometry(self, hf_config: Mapping[str, Any], generation_config: Mapping[str, Any] | None) -> ModelGeometry:
        """Plain numbers of the model.

        Raises:
            ModelError: for a key that is missing or a feature that the family does not have.
        """
        ...

    def tensor_map(self, geometry: ModelGeometry) -> Sequence[TensorRule]:
        """Every parameter once, in the order embedding, layers, final norm, output."""
        ...

    def tiny(self) -> dict[str, Any]:
        """A `config.json` of a model small enough for tests."""
        ...
