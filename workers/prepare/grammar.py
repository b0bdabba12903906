"""Constraints to grammars, and their refusal before anything runs. Needs llguidance, never mlx."""

from __future__ import annotations

from tokenizers import Tokenizer

from mlxplatform.inference.contract import Refusal
from workers.prepare.protocol import TextSpec


def validate(spec: TextSpec, tokenizer: Tokenizer) -> None:
    """Refuse what cannot be enforced.

    Raises:
        Refusal: 400 naming what is not supported.
    """
    if spec.constraint is not None:
        raise Refusal(
            400, "unsupported_constraint", "Constrained output is not available for this model.", param="response_format"
        )
