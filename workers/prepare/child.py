"""The preparation process: reads calls from standard input, writes replies to standard output.

Started by exec (``python -m workers.prepare.child``) and killed without ceremony when a call takes too long.
Imports no mlx, no transformers and no Django. It ends when its standard input does.
"""

from __future__ import annotations

import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from mlxplatform.inference.contract import Refusal
from workers.prepare import limits
from workers.prepare.preparation import Preparation
from workers.prepare.protocol import MAX_MESSAGE, Call, Reply


def read_message(stream: BinaryIO) -> bytes | None:
    """One length-prefixed message, None at the end of the stream."""
    header = stream.read(4)
    if len(header) < 4:
        return None
    size = int.from_bytes(header, "big")
    if size > MAX_MESSAGE:
        raise ValueError(f"message of {size} bytes")
    body = stream.read(size)
    return body if len(body) == size else None


def write_message(stream: BinaryIO, body: bytes) -> None:
    stream.write(len(body).to_bytes(4, "big") + body)
    stream.flush()


def _limit_memory(space: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = space if hard == resource.RLIM_INFINITY else min(space, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
    except (OSError, ValueError):
        # macOS refuses address space limits; the time limit still holds there.
        return


def _read_calls(source: BinaryIO, inbox: queue.SimpleQueue[bytes]) -> None:
    """Runs beside the work, so that a child whose parent is gone ends even in the middle of a template."""
    while (body := read_message(source)) is not None:
        inbox.put(body)
    os._exit(0)


def answer(preparation: Preparation, call: Call) -> Reply:
    """What a call comes to."""
    try:
        if call.op == "count":
            return Reply(count=preparation.count(call.request, call.model_dir))
        return Reply(prepared=preparation.prepare(call.request, call.model_dir, call.context))
    except Refusal as refusal:
        return Reply(refusal=refusal.failed())
    except MemoryError:
        return Reply(refusal=Refusal(400, "prompt_too_large", "The prompt needs more memory to read than allowed.").failed())


def serve(make: Callable[[], Preparation], answering: Callable[[Any, Call], Reply] = answer, *, space: int = 0) -> None:
    """Read calls and write replies until the input ends. ``space`` in bytes of address space, 0: the ordinary bound."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints must not end up between two messages.
    os.dup2(2, 1)
    # Ctrl-C reaches the whole terminal; this process ends when its parent lets go of it, and not before.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory(space or limits.ADDRESS_SPACE)
    # One core's worth: this process must not take the engine's.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_calls, args=(source, inbox), daemon=True).start()
    preparation = make()
    decoder = msgspec.msgpack.Decoder(Call)
    encoder = msgspec.msgpack.Encoder()
    while True:
        reply = answering(preparation, decoder.decode(inbox.get()))
        write_message(sink, encoder.encode(reply))


if __name__ == "__main__":
    try:
        serve(Preparation)
    except BrokenPipeError:
        sys.exit(0)
