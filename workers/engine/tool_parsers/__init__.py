"""How model families write tool calls: one module a family, each with one ``FAMILY``.

A family is recognised by its chat template, else by its vocabulary; ``tool_parser_type`` of a tokenizer
configuration overrides both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module

from workers.engine.tool_parsers import harmony
from workers.engine.tool_parsers.layout import Family

__all__ = ["FALLBACK", "FAMILIES", "Family", "detect", "family", "harmony"]

#: Every family, in the order their signs are looked for: a sign that contains another comes first.
FAMILIES: tuple[str, ...] = (
    "harmony",
    "minimax_m2",
    "gemma4",
    "function_gemma",
    "longcat",
    "glm47",
    "laguna",
    "pythonic",
    "qwen3_coder",
    "kimi_k2",
    "minicpm5",
    "deepseek",
    "mistral",
    "muse_spark",
    "nemotron",
    "granite",
    "hermes",
    "json_tools",
    "llama3",
    "kimi_k3",
)

#: The layout of models that have none: the one they are told to use.
FALLBACK = "hermes"


@lru_cache(maxsize=len(FAMILIES))
def family(name: str) -> Family:
    if name not in FAMILIES:
        raise ValueError(f"unknown tool format {name!r}")
    found: Family = import_module(f"workers.engine.tool_parsers.{name}").FAMILY
    return found


def detect(template: str, token_id: Callable[[str], int | None], stated: str | None = None) -> str:
    """The family of a model. ``token_id`` looks a token's text up; ``stated`` is what its configuration says."""
    if stated in FAMILIES:
        return stated
    for name in FAMILIES:
        if any(all(sign in template for sign in group) for group in family(name).signs):
            return name
    for name in FAMILIES:
        if any(all(token_id(text) is not None for text in group) for group in family(name).vocabulary):
            return name
    return FALLBACK
