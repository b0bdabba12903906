"""The neutral inference contract: what a request is, what may happen to it, how it may be refused.

This module is the only thing that wire protocols (``mlxplatform.api``), the client
(``mlxplatform.inference.client``), the gpu process (``workers.host``) and the engine child
(``workers.engine``) share. It knows no HTTP, no Redis, no SQL and no mlx. A protocol parses a body into
an :class:`InferenceRequest` and renders :data:`Event` values into frames; everything below the client
sees only these types.

Wire form: msgpack through ``msgspec`` (:func:`encode`, :func:`decode_request`, :func:`decode_frame`).
Events are arrays tagged by a short string, so that one published frame for a whole decode step of a
whole batch stays small. Fields may be appended with a default; never reordered, never removed.

Life of a request, as events: ``Admitted`` · ``Waiting``\\* · (``Reasoning`` | ``Text`` | ``ToolCall``)\\* ·
exactly one of ``Finished`` or ``Failed``. A refusal before ``Admitted`` is a ``Failed`` whose ``status``
tells the protocol which plain error answer to give.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

#: Work classes, in the engine's order of precedence.
Priority = Literal["interactive", "row"]

FinishReason = Literal["stop", "length", "tool_calls"]


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the next token is drawn. ``None`` means: not set by the client (server and model defaults apply).

    Ranges are enforced by the protocols before a request exists. ``temperature`` 0 is greedy. ``top_p`` 0
    or 1 and ``top_k`` 0 are off. ``xtc_probability`` in [0, 1], ``xtc_threshold`` in [0, 0.5]. Context
    sizes count tokens, 0 means the whole history. ``logit_bias`` maps token ids to added logits.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    repetition_context_size: int | None = None
    presence_penalty: float | None = None
    presence_context_size: int | None = None
    frequency_penalty: float | None = None
    frequency_context_size: int | None = None
    logit_bias: dict[int, float] | None = None
    hlg: dict[str, Any] | None = None


class Constraint(msgspec.Struct, frozen=True):
    """A grammar the answer must follow, from the first token after reasoning.

    ``kind`` is one of json_object, json_schema, regex, choice, grammar (Lark), tool_call; ``spec`` is the
    schema object, the pattern, the list of choices, the grammar text, or the tool names allowed.
    """

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar", "tool_call"]
    spec: Any = None


class ToolCall(msgspec.Struct, frozen=True, tag="call", array_like=True):
    """One complete tool call of the model; ``arguments`` is a JSON text."""

    id: str
    name: str
    arguments: str


class Image(msgspec.Struct, frozen=True, omit_defaults=True):
    """A picture in a turn, before the character ``at`` of its content.

    ``source`` is how the client gave it (a URL, a data URL, or bare base64), and empty below the web process: the picture itself
    then travels beside the request, as its file of that ``number``. ``param`` is what a refusal calls it.
    """

    at: int = 0
    source: str = ""
    param: str = ""
    number: int = 0


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn. ``content`` is text (parts already joined) or None; ``role`` is system, user, assistant or tool.

    ``images`` are in the order of their places in the content.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    images: list[Image] | None = None


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function the model may call; ``parameters`` is a JSON Schema object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Audio(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a recording is to be written down. The recording itself travels beside the request, under its id.

    ``task`` translate gives English. ``language`` None: found out. ``words`` adds the times of single words.
    """

    task: Literal["transcribe", "translate"] = "transcribe"
    language: str | None = None
    prompt: str | None = None
    temperature: float | None = None
    words: bool = False


class InferenceRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One inference call, fully validated, in the words of no protocol.

    ``kind`` chooses which fields count: chat renders ``messages`` and ``tools`` through the model's
    template; completion takes ``prompt`` (text, or token ids) as it is; embedding takes ``inputs``;
    score takes ``messages`` plus ``labels`` and generates nothing; transcription takes ``audio``.
    ``model`` is the id of a local model (already resolved from whatever the client sent).
    ``max_tokens`` None means: until a stop or the end of the context window.
    ``logprobs`` None is off, 0 the chosen token only, k > 0 the k best as well.
    ``frames`` is the pub/sub channel of the web process that waits, "" when nobody does.
    ``trace`` is the W3C traceparent of the HTTP request, "" when no traces are made.
    ``pictures`` names where the messages' images lie in the broker, in their order; "" when there are none.
    """

    id: str
    model: str
    kind: Literal["chat", "completion", "embedding", "score", "transcription"] = "chat"
    priority: Priority = "interactive"
    messages: list[Message] = []
    prompt: str | list[int] | None = None
    inputs: list[str | list[int]] | None = None
    labels: list[str] | None = None
    tools: list[Tool] = []
    tool_choice: str = "auto"
    template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: list[str] = []
    logprobs: int | None = None
    constraint: Constraint | None = None
    adapter: str | None = None
    session: str | None = None
    dimensions: int | None = None
    instruction: str | None = None
    frames: str = ""
    stored: bool = False
    background: bool = False
    project: str = "default"
    key_id: str = ""
    trace: str = ""
    audio: Audio | None = None
    pictures: str = ""

    @property
    def images(self) -> list[Image]:
        """The pictures of all messages, in order."""
        return [image for message in self.messages for image in message.images or ()]

    @property
    def outlives(self) -> bool:
        """Whether it goes on without the process that asked for it, and is taken up again by another gpu process."""
        return self.stored or self.background


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Token counts. ``cached`` of ``prompt`` came from the prefix cache; ``reasoning`` is part of ``completion``."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probability of the emitted token and of the best alternatives, highest first.

    ``top`` holds (token id, text, logprob). Impossible tokens carry a floor value, never -inf.
    """

    id: int
    text: str
    logprob: float
    top: list[tuple[int, str, float]] = []


class Admitted(msgspec.Struct, frozen=True, tag="adm", array_like=True):
    """In the waiting list: tokenized, placed, and from now on answered by a stream."""

    prompt_tokens: int
    model: str
    host: str = ""


class Waiting(msgspec.Struct, frozen=True, tag="wait", array_like=True):
    """Still waiting. ``reason`` is queue, load, lease or restart; ``eta_s`` is an estimate or None."""

    position: int = 0
    eta_s: float | None = None
    reason: str = "queue"


class Text(msgspec.Struct, frozen=True, tag="t", array_like=True):
    text: str
    logprobs: list[TokenLogprob] = []


class Reasoning(msgspec.Struct, frozen=True, tag="r", array_like=True):
    text: str
    logprobs: list[TokenLogprob] = []


class Embedded(msgspec.Struct, frozen=True, tag="emb", array_like=True):
    """One float32 little-endian vector per input, in input order."""

    vectors: list[bytes]
    dimensions: int


class Scored(msgspec.Struct, frozen=True, tag="score", array_like=True):
    """Natural-log probabilities of ``labels``, in their order."""

    logprobs: list[float]


class Transcribed(msgspec.Struct, frozen=True, tag="asr", array_like=True):
    """What is known of a whole recording; its text came as ``Text``. Times are seconds.

    ``segments`` and ``words`` are JSON objects as OpenAI's verbose form has them.
    """

    language: str
    duration: float
    segments: list[dict[str, Any]]
    words: list[dict[str, Any]] = []


class Finished(msgspec.Struct, frozen=True, tag="end", array_like=True):
    """The answer is complete. ``stop_sequence`` names the stop string that ended it."""

    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None


class Failed(msgspec.Struct, frozen=True, tag="fail", array_like=True):
    """The request ended without an answer. ``message`` is fit for a client: no path, class or library name."""

    code: str
    message: str
    status: int = 500
    param: str | None = None
    retry_after: int | None = None
    usage: Usage | None = None


Event = Admitted | Waiting | Text | Reasoning | ToolCall | Embedded | Scored | Transcribed | Finished | Failed


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """The events of one request in one published frame; ``seq`` numbers the first, counted from 1."""

    request: str
    seq: int
    events: list[Event]


class Refusal(Exception):
    """A request that is not going to run, with everything an error answer needs.

    ``code`` is machine-readable and stable; ``param`` names the offending field. See the table in
    docs/reference/errors.md for every code.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after

    @classmethod
    def from_failed(cls, failed: Failed) -> Refusal:
        return cls(failed.status, failed.code, failed.message, param=failed.param, retry_after=failed.retry_after)

    def failed(self) -> Failed:
        """The same refusal as an event."""
        return Failed(self.code, self.message, self.status, self.param, self.retry_after)


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(InferenceRequest)
_frame_decoder = msgspec.msgpack.Decoder(list[Delivery])
_events_decoder = msgspec.msgpack.Decoder(list[Event])


def encode(value: InferenceRequest | list[Delivery] | list[Event]) -> bytes:
    """msgpack bytes of a request, a frame, or a list of events."""
    return _encoder.encode(value)


def decode_request(raw: bytes) -> InferenceRequest:
    return _request_decoder.decode(raw)


def decode_frame(raw: bytes) -> list[Delivery]:
    return _frame_decoder.decode(raw)


def decode_events(raw: bytes) -> list[Event]:
    return _events_decoder.decode(raw)
