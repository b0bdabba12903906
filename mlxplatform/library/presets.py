"""Presets as data and as a function of a request: what the client said wins, what it left open is the preset's.

Then come the model's own generation_config and our defaults (workers/prepare/resolve.py). Knows no SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mlxplatform.http.fields import Field
from mlxplatform.inference.contract import InferenceRequest

#: Kinds of model of which one answers when none is named.
KINDS = ("chat", "embedding")
#: Smallest window worth having, tokens.
MIN_CONTEXT = 64

FIELDS = (
    Field("temperature", "float", low=0, high=2, doc="0 is greedy"),
    Field("top_p", "float", low=0, high=1, doc="Share of the probability sampled from; 0 or 1: off"),
    Field("top_k", "int", low=0, high=1_000_000, doc="Tokens sampled from; 0: all"),
    Field("min_p", "float", low=0, high=1, doc="Least probability, as a share of the best token's"),
    Field("repetition_penalty", "float", low=0.1, high=10, doc="Above 1 repeats less"),
    Field("presence_penalty", "float", low=-2, high=2, doc="Above 0 repeats less"),
    Field("frequency_penalty", "float", low=-2, high=2, doc="Above 0 repeats less"),
    Field("max_tokens", "int", low=1, high=10_000_000, doc="Longest answer, where a request sets no limit"),
    Field("context", "int", low=MIN_CONTEXT, high=10_000_000, doc="Window in tokens; at most the model's own"),
    Field("thinking", "bool", doc="Whether a model that can think does, where a request does not say"),
)
_SAMPLING = tuple(field.name for field in FIELDS if field.name not in {"max_tokens", "context", "thinking"})


@dataclass(frozen=True)
class Choices:
    """Everything chosen, as a host holds it in memory."""

    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pinned: frozenset[str] = frozenset()
    defaults: Mapping[str, str] = field(default_factory=dict)

    def preset_of(self, model: str, base: str = "") -> Mapping[str, Any]:
        """A model's preset; a fine-tuned name's own values come before its base's."""
        return {**self.presets.get(base, {}), **self.presets.get(model, {})}


def with_preset(request: InferenceRequest, preset: Mapping[str, Any]) -> InferenceRequest:
    """``request`` where it speaks, ``preset`` where it does not."""
    open_ = {name: preset[name] for name in _SAMPLING if name in preset and getattr(request.sampling, name) is None}
    changes: dict[str, Any] = {}
    if open_:
        changes["sampling"] = msgspec.structs.replace(request.sampling, **open_)
    if request.max_tokens is None and "max_tokens" in preset:
        changes["max_tokens"] = preset["max_tokens"]
    said = "enable_thinking" in request.template_kwargs or request.reasoning_effort is not None
    if "thinking" in preset and not said and request.kind == "chat":
        changes["template_kwargs"] = {**request.template_kwargs, "enable_thinking": preset["thinking"]}
    return msgspec.structs.replace(request, **changes) if changes else request
