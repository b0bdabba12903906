"""Calls into preparation children, with a clock on each call.

A call that outlives its clock costs its child the life: the child is killed, the caller gets a refusal with
a reason, and the next call starts another. Calls are thread-safe; one child works on one call at a time, and
a second child is started when the first is busy, so that one slow prompt does not hold up the rest.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import msgspec

from mlxplatform.inference.contract import InferenceRequest, Refusal
from workers.prepare import limits
from workers.prepare.protocol import MAX_MESSAGE, Call, Prepared, Reply

#: Children at most. Two: one may be busy with a 10 MiB prompt while the other serves everybody else.
CHILDREN = 2

_ROOT = Path(__file__).resolve().parents[2]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Reply)


class ChildDied(Exception):
    """The child ended without an answer."""


class CallTimeout(Exception):
    """The child gave no answer in time."""


def _wait(descriptor: int, event: int, deadline: float) -> None:
    """Until a pipe can be used. Not by ``select``, which fails on descriptors above 1023.

    Raises:
        CallTimeout: the deadline passed first.
    """
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise CallTimeout


class _Child:
    """One process and its two pipes."""

    def __init__(self, module: str) -> None:
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
            bufsize=0,
        )
        assert self.process.stdin and self.process.stdout
        self._write = self.process.stdin.fileno()
        self._read = self.process.stdout.fileno()
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, call: Call, seconds: float) -> Reply:
        deadline = time.monotonic() + seconds
        body = _encoder.encode(call)
        if len(body) > MAX_MESSAGE:
            raise Refusal(413, "request_too_large", "The prompt is too large.")
        try:
            self._send(len(body).to_bytes(4, "big") + body, deadline)
            size = int.from_bytes(self._receive(4, deadline), "big")
            return _decoder.decode(self._receive(size, deadline))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChildDied from error

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            _wait(self._write, select.POLLOUT, deadline)
            view = view[os.write(self._write, view) :]

    def _receive(self, size: int, deadline: float) -> bytes:
        parts = []
        while size > 0:
            _wait(self._read, select.POLLIN, deadline)
            part = os.read(self._read, min(size, 1 << 20))
            if not part:
                raise ChildDied
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


class Preparer:
    """Turns requests into :class:`Prepared` values in killable processes."""

    def __init__(self, *, children: int = CHILDREN, seconds: float = limits.CALL_SECONDS, module: str = "workers.prepare.child"):
        """``module`` is what a child runs."""
        self._module = module
        self._limit = children
        self._seconds = seconds
        self._idle: deque[_Child] = deque()
        self._running = 0
        self._closed = False
        self._changed = threading.Condition()

    def start(self) -> None:
        """Start the first child, so that the first request does not wait for it. Optional."""
        with self._changed:
            if self._running == 0 and not self._closed:
                self._running += 1
                self._idle.append(_Child(self._module))

    def close(self) -> None:
        """End every child. Calls in progress and later ones are refused."""
        with self._changed:
            self._closed = True
            while self._idle:
                self._idle.pop().kill()
                self._running -= 1
            self._changed.notify_all()

    def prepare(
        self, request: InferenceRequest, model_dir: str | Path, context: int = 0, pictures: list[bytes] | None = None
    ) -> Prepared:
        """Prepare one request; ``context`` above 0 caps the model's window.

        Raises:
            Refusal: the request cannot run; 400 with a reason, 502 for a broken model directory, 503 when closing.
        """
        reply = self._call(Call("prepare", request, str(model_dir), context, pictures or []))
        assert reply.prepared is not None
        return reply.prepared

    def count(self, request: InferenceRequest, model_dir: str | Path, pictures: list[bytes] | None = None) -> int:
        """Prompt tokens of a request, without loading any weights."""
        reply = self._call(Call("count", request, str(model_dir), pictures=pictures or []))
        assert reply.count is not None
        return reply.count

    def _call(self, call: Call) -> Reply:
        try:
            try:
                reply = self._ask(call)
            except ChildDied:
                # Somebody may have killed it from outside; only what kills a second child is to blame itself.
                reply = self._ask(call)
        except CallTimeout:
            raise Refusal(
                400,
                "preparation_timeout",
                f"Reading the prompt took longer than {self._seconds:g} s and was given up.",
                param="messages",
            ) from None
        except ChildDied:
            raise Refusal(
                400,
                "preparation_failed",
                "Reading the prompt needed more memory or stack than allowed and was given up.",
                param="messages",
            ) from None
        if reply.refusal is not None:
            raise Refusal.from_failed(reply.refusal)
        return reply

    def _ask(self, call: Call) -> Reply:
        child = self._take()
        usable = False
        try:
            reply = child.ask(call, self._seconds)
            usable = True
            return reply
        finally:
            self._put_back(child, usable=usable)

    def _take(self) -> _Child:
        with self._changed:
            while True:
                if self._closed:
                    raise Refusal(503, "engine_unavailable", "The server is shutting down.", retry_after=5)
                while self._idle:
                    child = self._idle.pop()
                    if child.alive:
                        return child
                    child.kill()
                    self._running -= 1
                if self._running < self._limit:
                    self._running += 1
                    break
                self._changed.wait()
        try:
            return _Child(self._module)
        except OSError as error:
            with self._changed:
                self._running -= 1
                self._changed.notify()
            raise Refusal(503, "engine_unavailable", "The server cannot start another process now.", retry_after=5) from error

    def _put_back(self, child: _Child, *, usable: bool) -> None:
        with self._changed:
            if usable and not self._closed:
                self._idle.append(child)
            else:
                self._running -= 1
            self._changed.notify()
        if not usable or self._closed:
            child.kill()
