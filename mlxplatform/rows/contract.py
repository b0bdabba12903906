"""What an orchestrator asks of rows and what it gets back.

Knows the inference contract and nothing of SQL, Redis or templates. A :class:`RowRequest` names one call
within its job; a :class:`RowResult` is that call's one and only outcome.
"""

from __future__ import annotations

import hashlib

import msgspec

from mlxplatform.inference.contract import InferenceRequest, TokenLogprob, ToolCall, Usage


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished answer, complete. ``vectors`` are float32 little-endian, one per input."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = []
    finish_reason: str = "stop"
    stop_sequence: str | None = None
    usage: Usage = Usage()
    logprobs: list[TokenLogprob] = []
    vectors: list[bytes] = []
    dimensions: int = 0
    scores: list[float] = []
    model: str = ""


class RowError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a call has no answer; ``message`` is fit for the person who asked."""

    code: str
    message: str
    status: int = 500
    param: str | None = None


class RowRequest(msgspec.Struct, frozen=True):
    """One call. ``key`` is unique within the job ("row:step"); ``ordinal`` is the row's place, for order."""

    key: str
    ordinal: int
    request: InferenceRequest


class RowResult(msgspec.Struct, frozen=True):
    """The outcome of one call: ``output`` or ``error``. ``reused`` says that it was not run this time."""

    key: str
    ordinal: int
    output: Output | None = None
    error: RowError | None = None
    reused: bool = False


def encode_output(output: Output) -> bytes:
    return msgspec.msgpack.encode(output)


_output_decoder = msgspec.msgpack.Decoder(Output)


def decode_output(raw: bytes) -> Output:
    return _output_decoder.decode(raw)


def fingerprint(request: InferenceRequest) -> str:
    """Identity of what is asked, whoever asks: the same text, model and sampling give the same value."""
    neutral = msgspec.structs.replace(request, id="", frames="", project="", priority="row")
    # The one mapping with keys that are no text, which cannot be put in order together with the others.
    bias = sorted((neutral.sampling.logit_bias or {}).items())
    neutral = msgspec.structs.replace(neutral, sampling=msgspec.structs.replace(neutral.sampling, logit_bias=None))
    told = msgspec.msgpack.encode(neutral, order="deterministic") + (msgspec.msgpack.encode(bias) if bias else b"")
    return hashlib.blake2b(told, digest_size=16).hexdigest()
