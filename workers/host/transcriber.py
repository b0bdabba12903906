"""Transcriptions of this host: one recording at a time, each in a child of its own, under the GPU lease.

The recording comes from Redis, where the web process put it beside the request; it is written to a file for the child and
removed with it. Waiting recordings are taken in the order they came. A cancel ends the wait or the child.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import redis
import structlog

from mlxplatform.broker import queues
from mlxplatform.broker.lease import Lease
from mlxplatform.inference.contract import (
    Admitted,
    Audio,
    Event,
    Failed,
    Finished,
    InferenceRequest,
    Refusal,
    Text,
    Transcribed,
    Usage,
)
from mlxplatform.library import local_models
from mlxplatform.library.local_models import LocalModel
from workers.host.journal import Sink
from workers.host.runtime import CANCELLED, HostRuntime

log = structlog.get_logger(__name__)

#: Seconds one recording may take; beyond it the child is ended.
TAKE_SECONDS = 3600.0
#: Seconds between looks at whether a waiting recording was cancelled.
LOOK_SECONDS = 0.1
#: Recordings that may wait on a host; each is in memory.
MOST_WAITING = 16
#: How the child's line begins that says it could read the recording.
HEARD = b'{"heard"'
_ROOT = Path(__file__).resolve().parents[2]

FAILED = Failed("engine_failed", "The recording could not be transcribed.", 500)
TOO_LONG = Failed("timeout", "The recording took too long to transcribe.", 503)


def installed() -> bool:
    """Whether the optional requirements of transcription are there."""
    return importlib.util.find_spec("mlx_whisper") is not None


class Take:
    """One recording on its way."""

    def __init__(self, request: InferenceRequest) -> None:
        self.request = request
        self.cancelled = threading.Event()

    def cancel(self, reason: str = "") -> None:
        log.info("request.cancelled", request=self.request.id, reason=reason)
        self.cancelled.set()


class Transcriber:
    """Takes recordings of this host. ``run`` blocks its thread to the end of one; ``flush`` sends what sinks were told."""

    def __init__(self, runtime: HostRuntime, client: redis.Redis, flush: Callable[[], None]) -> None:
        self._runtime, self._client, self._flush = runtime, client, flush
        self._line: deque[Take] = deque()
        self._moved = threading.Condition()

    def run(self, request: InferenceRequest, sink: Sink) -> None:
        """Every outcome reaches the sink."""

        def tell(*events: Event) -> None:
            sink(list(events))
            self._flush()

        take = Take(request)
        try:
            model = self._admit(take)
        except Refusal as refusal:
            self._client.delete(queues.audio_key(request.id))
            tell(refusal.failed())
            return
        try:
            outcome = self._outcome(take, model, tell)
        except Exception:  # a defect of ours, or a broker that is away: its client must still get an answer
            log.exception("transcription.failed", request=request.id)
            outcome = [FAILED]
        try:
            tell(*outcome)
        finally:
            with self._moved:
                self._line.remove(take)
                self._moved.notify_all()
            self._runtime.dismiss(take)

    def _admit(self, take: Take) -> LocalModel:
        """Its model; the take stands in line afterwards.

        Raises:
            Refusal: no such model, nothing to run it with, too many wait, or it was cancelled before.
        """
        if not installed():
            raise Refusal(503, "model_unavailable", "Transcription is not installed on this server.")
        model = local_models.find(take.request.model, self._runtime.settings.home)
        if model is None or model.kind != "transcription":
            raise Refusal(503, "model_unavailable", "There is no transcription model on this server.")
        with self._moved:
            if len(self._line) >= MOST_WAITING:
                raise Refusal(429, "queue_full", "Too many recordings are waiting. Try again shortly.", retry_after=10)
            self._runtime.attend(take)
            self._line.append(take)
        return model

    def _outcome(self, take: Take, model: LocalModel, tell: Callable[..., None]) -> list[Event]:
        """The last events of a take in line."""
        recording: Any = self._client.getdel(queues.audio_key(take.request.id))
        if recording is None:
            return [Failed("engine_unavailable", "The recording was lost on its way. Send it again.", 503, retry_after=1)]
        with self._moved:
            while self._line[0] is not take and not take.cancelled.is_set():
                self._moved.wait(LOOK_SECONDS)
        host = self._runtime.settings.host
        lease = Lease(self._client, host, mode="shared", cls="interactive", reason=f"transcription {model.id}")
        try:
            while not take.cancelled.is_set() and not lease.acquire(timeout=1.0, cancelled=take.cancelled.is_set):
                log.info("transcription.waits", request=take.request.id, ahead=lease.ahead)
            if take.cancelled.is_set():
                return [CANCELLED]
            return self._written(take, model, recording, lambda: tell(Admitted(0, model.id, host)))
        finally:
            lease.release()

    def _written(self, take: Take, model: LocalModel, recording: bytes, on_heard: Callable[[], None]) -> list[Event]:
        order = msgspec.json.encode({"task": "transcribe", **msgspec.to_builtins(take.request.audio or Audio())}).decode()
        with tempfile.NamedTemporaryFile(prefix="recording-") as file:
            file.write(recording)
            file.flush()
            command = [sys.executable, "-m", "workers.transcriber.main", str(model.path), file.name, order]
            child = subprocess.Popen(command, env=_environment(), cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            words = _words_of(child, take.cancelled, on_heard)
        if words is None:
            return [CANCELLED if take.cancelled.is_set() else TOO_LONG]
        return _events(words, child.returncode)


def _environment() -> dict[str, str]:
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _words_of(child: subprocess.Popen[bytes], cancelled: threading.Event, on_heard: Callable[[], None]) -> bytes | None:
    """The last line the child printed; None when it was ended. Its input stays open: it lives as long as that."""
    assert child.stdout is not None and child.stdin is not None
    lines: list[bytes] = []

    def read() -> None:
        for line in child.stdout or ():
            lines.append(line)
            if line.startswith(HEARD):
                on_heard()

    reader = threading.Thread(target=read, name="transcription", daemon=True)
    reader.start()
    deadline = time.monotonic() + TAKE_SECONDS
    try:
        while reader.is_alive() and not cancelled.is_set() and time.monotonic() < deadline:
            reader.join(LOOK_SECONDS)
        return None if reader.is_alive() else (lines or [b""])[-1]
    finally:
        child.kill()  # harmless when it has ended
        child.wait()
        reader.join()
        child.stdin.close()
        child.stdout.close()


def _events(words: bytes, status: int | None) -> list[Event]:
    try:
        found = json.loads(words)
    except ValueError:
        found = {}
    if "refused" in found:
        return [Failed("invalid_value", found["refused"], 400, found["param"])]
    if "segments" not in found:
        log.error("transcription.failed", status=status)
        return [FAILED]
    transcribed = Transcribed(found["language"], found["duration"], found["segments"], found["words"])
    return [*[Text(segment["text"]) for segment in found["segments"]], transcribed, Finished("stop", Usage())]
