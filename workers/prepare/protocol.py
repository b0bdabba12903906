"""What preparation makes of a request, and the messages between the preparation child and its client.

:class:`Prepared` is everything the engine needs besides the weights: token ids, resolved sampling, and the
:class:`TextSpec` by which the text layer turns emitted tokens back into events. Types only; the module
knows no tokenizer, no template and no mlx, so every process may import it.

Wire form of the child's pipes: a 4-byte big-endian length, then msgpack of :class:`Call` or :class:`Reply`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mlxplatform.inference.contract import Failed, InferenceRequest, Sampling, Tool

#: Longest message either side accepts; a request body is limited far below (bytes).
MAX_MESSAGE = 256 * 1024 * 1024


class TextSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the answer's tokens become events.

    ``stop`` are the client's stop strings. ``tools`` empty means that no markup is looked for.
    ``tool_format`` names a module of ``workers.engine.tool_parsers``. ``reasoning`` is the pair of marks
    around reasoning, None for a model that has none; ``starts_in_reasoning`` says that the rendered prompt
    ends inside an open mark. ``stop_ids`` end the answer and are never shown.
    ``withhold_calls`` drops the calls of a model that was told not to make any. ``channels``: the model writes
    harmony messages. ``grammar`` is the compiled constraint, "" for none; it binds from the first token, or
    from the end of reasoning that is open, or may be opened by the first token. ``reasoning_ids`` are the marks
    of ``reasoning`` as tokens. ``jump``: tokens that the grammar determines may be put in without choosing them.
    """

    stop: list[str] = []
    tools: list[Tool] = []
    tool_format: str | None = None
    reasoning: tuple[str, str] | None = None
    starts_in_reasoning: bool = False
    stop_ids: list[int] = []
    withhold_calls: bool = False
    channels: bool = False
    grammar: str = ""
    grammar_from: Literal["start", "reasoning", "maybe_reasoning"] = "start"
    reasoning_ids: tuple[list[int], list[int]] = ([], [])
    jump: bool = False


class Prepared(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request, ready for the engine.

    ``boundary`` is the number of prompt tokens that the next turn of the same conversation will share, None
    when unknown. ``context`` is the window in tokens, ``max_tokens`` already fits the room left in it.
    ``sampling`` has every field that matters filled from the request, the model's own defaults, then ours.
    ``inputs`` (embedding) and ``labels`` (score) are token ids per text. ``pictures`` are the arrays of the prompt's
    images as the model's own processor makes them (safetensors).
    """

    prompt_ids: list[int]
    text: TextSpec
    stop_ids: list[int]
    context: int
    vocab_size: int
    boundary: int | None = None
    max_tokens: int = 0
    sampling: Sampling = Sampling()
    inputs: list[list[int]] = []
    labels: list[list[int]] = []
    pictures: bytes = b""


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call into the child. ``context`` caps the model's window when above 0. ``pictures`` are image files."""

    op: Literal["prepare", "count"]
    request: InferenceRequest
    model_dir: str
    context: int = 0
    pictures: list[bytes] = []


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exactly one field is set."""

    prepared: Prepared | None = None
    count: int | None = None
    refusal: Failed | None = None
