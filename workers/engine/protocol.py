"""What the gpu process and an engine child say to each other.

One stream socket, both directions: a 4-byte big-endian length, then one msgpack message. Downwards come
orders about single sequences; upwards comes one :class:`Step` for each decode step, whatever the number of
sequences, so that the cost of a step does not grow with the batch; quick steps are told together. A sequence is known by a number
(``seq``) which the gpu process never reuses within one child.

The child speaks token ids only. It knows no text, no request ids, no Redis and no SQL: whoever supervises
it can therefore rebuild everything it held from prompt ids and emitted ids.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

from mlxplatform.inference.contract import Priority, Sampling
from workers.prepare.protocol import TextSpec

_LENGTH = struct.Struct(">I")

#: Largest message either side accepts, bytes. A 1M-token prompt is about 5 MB; anything near this is a bug.
MAX_MESSAGE = 256 * 1024 * 1024

#: One alternative: token id and natural-log probability.
Alternative = tuple[int, float]


class Start(msgspec.Struct, frozen=True, tag="start", array_like=True):
    """Run a sequence. ``emitted`` is what an earlier child already produced: it is prefilled, not repeated.

    ``boundary`` is how many leading prompt ids stay the same in the next turn of the conversation; the
    prefix cache keeps a copy there. ``grammar`` is set when the answer must follow one.
    ``logprobs`` is as in the request. ``eos`` are the
    ids that end the sequence; ``protected`` are further ids that XTC never excludes. ``pictures`` are the arrays that
    the prompt's picture tokens stand for (safetensors), empty for a prompt of words.
    """

    seq: int
    prompt: list[int]
    emitted: list[int]
    max_tokens: int
    priority: Priority
    eos: list[int]
    sampling: Sampling
    logprobs: int | None = None
    grammar: TextSpec | None = None
    boundary: int | None = None
    adapter: str | None = None
    protected: list[int] = []
    pictures: bytes = b""


class Cancel(msgspec.Struct, frozen=True, tag="cancel", array_like=True):
    seq: int


class Embed(msgspec.Struct, frozen=True, tag="embed", array_like=True):
    """Vectors for several texts at once; ``dimensions`` cuts and renormalises them."""

    seq: int
    inputs: list[list[int]]
    priority: Priority
    dimensions: int | None = None


class Score(msgspec.Struct, frozen=True, tag="score", array_like=True):
    """Log-probabilities of each label's tokens after ``prompt``; nothing is generated."""

    seq: int
    prompt: list[int]
    labels: list[list[int]]
    priority: Priority
    adapter: str | None = None


class Mount(msgspec.Struct, frozen=True, tag="mount", array_like=True):
    """Make an adapter directory available under a name; answered by :class:`Mounted`."""

    name: str
    path: str


class Unmount(msgspec.Struct, frozen=True, tag="unmount", array_like=True):
    """Forget an adapter and the prompt caches made with it; the answer is no news to anybody."""

    name: str


class Deadline(msgspec.Struct, frozen=True, tag="until", array_like=True):
    """Monotonic clock value after which the child must not touch the GPU until told a later one; 0: no limit."""

    monotonic: float


class Flush(msgspec.Struct, frozen=True, tag="flush", array_like=True):
    """Forget all prompt caches, on SSD as well."""


class Room(msgspec.Struct, frozen=True, tag="room", array_like=True):
    """From now on the engine may use so many bytes; answered by :class:`Facts`."""

    budget: int


class Shrink(msgspec.Struct, frozen=True, tag="shrink", array_like=True):
    """The machine runs out of memory: give free buffers back and drop half of the prompt caches in memory."""


class Quit(msgspec.Struct, frozen=True, tag="quit", array_like=True):
    """End in order: caches dropped, memory given back, exit code 0."""


Order = Start | Cancel | Embed | Score | Mount | Unmount | Deadline | Flush | Room | Shrink | Quit


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    """The model is resident. ``facts`` holds dtype, blas, device, weight bytes, KV bytes per token, seconds."""

    facts: dict[str, Any]


class LoadFailed(msgspec.Struct, frozen=True, tag="noload", array_like=True):
    """The model cannot be loaded; ``message`` is fit for a client, ``detail`` for the log."""

    message: str
    detail: str
    code: str = "model_load_failed"
    status: int = 502


class Token(msgspec.Struct, frozen=True, array_like=True):
    """One emitted token; ``logprob`` and ``top`` only when the sequence asked for them."""

    seq: int
    id: int
    logprob: float | None = None
    top: list[Alternative] | None = None


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one sequence that came one after the other."""

    seq: int
    ids: list[int]


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """Prefill of one sequence: ``done`` of ``total`` prompt tokens, ``cached`` of which came from the prefix cache."""

    seq: int
    done: int
    total: int
    cached: int


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """A sequence is over: reason stop (an ``eos`` id, itself not in ``tokens``) or length."""

    seq: int
    reason: str


class Broken(msgspec.Struct, frozen=True, array_like=True):
    """A sequence was given up without harm to the others; ``message`` is fit for a client."""

    seq: int
    code: str
    message: str
    status: int
    param: str | None = None


class Step(msgspec.Struct, frozen=True, tag="step", array_like=True):
    """Everything one turn of the engine loop has to say, or several turns together: see :mod:`workers.engine.gathering`."""

    tokens: list[Token]
    progress: list[Progress] = []
    ended: list[Ended] = []
    broken: list[Broken] = []
    runs: list[Run] = []


class Vectors(msgspec.Struct, frozen=True, tag="vectors", array_like=True):
    seq: int
    vectors: list[bytes]
    dimensions: int
    tokens: int


class Scores(msgspec.Struct, frozen=True, tag="scores", array_like=True):
    seq: int
    logprobs: list[float]
    cached: int


class Mounted(msgspec.Struct, frozen=True, tag="mounted", array_like=True):
    """Answer to Mount; ``error`` is fit for a client, "" when it worked."""

    name: str
    error: str
    facts: dict[str, Any]


class Stats(msgspec.Struct, frozen=True, tag="stats", array_like=True):
    """Sent about once a second, and when idle once more: see docs/reference/engine.md for the names."""

    values: dict[str, float]


class Facts(msgspec.Struct, frozen=True, tag="facts", array_like=True):
    """What of :class:`Ready`'s facts has changed."""

    facts: dict[str, Any]


class Alive(msgspec.Struct, frozen=True, tag="alive", array_like=True):
    """Sent by the outbox when there is nothing else to say; ``in_turn`` seconds the main thread has been in its turn."""

    in_turn: float


Report = Ready | LoadFailed | Step | Vectors | Scores | Mounted | Stats | Facts | Alive

_encoder = msgspec.msgpack.Encoder()
_orders = msgspec.msgpack.Decoder(Order)
_reports = msgspec.msgpack.Decoder(Report)


def pack(message: Order | Report) -> bytes:
    """The framed bytes of one message."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Reader:
    """Reads framed messages from a socket; not for use by two threads at once."""

    def __init__(self, sock: socket.socket, *, upwards: bool):
        self._file = sock.makefile("rb")
        self._decoder: Any = _reports if upwards else _orders

    def read(self) -> Any:
        """The next message, or None when the other side is gone.

        Raises:
            ValueError: a length no honest peer sends.
        """
        try:
            head = self._file.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (size,) = _LENGTH.unpack(head)
            if size > MAX_MESSAGE:
                raise ValueError(f"message of {size} bytes")
            body = self._file.read(size)
        except OSError:
            return None
        return self._decoder.decode(body) if len(body) == size else None
