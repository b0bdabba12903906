"""The actor that runs one chunk of rows on this host's engine.

A chunk is claimed under its fence, its open calls are handed to the runtime all at once (the engine decides
which of them may run beside chat), and results are committed in small batches. :mod:`workers.tasks.row_pulse` beats
for the chunk and notices within half a second when it is lost (cancelled, or declared dead by the sweeper), which
stops its calls. The process may be killed anywhere: nothing is answered twice, because a commit needs the fence,
and nothing is lost, because what was not committed is still pending.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import dramatiq
import msgspec
import structlog
from django.conf import settings
from django.db import Error as DatabaseTrouble
from django.db import close_old_connections, connection

from mlxplatform.broker import queues
from mlxplatform.broker.dramatiq_broker import get_broker
from mlxplatform.inference import contract
from mlxplatform.inference.contract import Event, Failed, Finished, InferenceRequest, Refusal
from mlxplatform.rows import chunks
from mlxplatform.rows.chunks import OpenCall, Outcome
from mlxplatform.rows.contract import Output, RowError
from mlxplatform.rows.models import RowChunk
from mlxplatform.rows.sending import announce
from workers.tasks.payer import Payer
from workers.tasks.row_pulse import pulse

log = structlog.get_logger(__name__)

#: Seconds between commits, which bounds what a death costs, and results that are committed without waiting so long.
COMMIT_SECONDS, COMMIT_RESULTS = 0.25, 32
#: Seconds between tries to commit while the database is locked, full or away.
COMMIT_RETRY_SECONDS = 1.0
#: Seconds of starting calls after which what is finished meanwhile is committed first.
STARTING_SECONDS = 2.0
#: Times a call is started again after the engine failed under it, and the delay doubled each time, seconds.
RESTARTS, RESTART_SECONDS = 4, 0.5
#: Seconds before a chunk that the host cannot take now is sent again.
GIVE_BACK_SECONDS = 5.0
#: Statuses that say "not now" rather than "not this".
NOT_NOW = frozenset({429, 503})


class Running(Protocol):
    def cancel(self, reason: str) -> None: ...


class Runtime(Protocol):
    """What this module needs of the host runtime."""

    def start(self, request: InferenceRequest, sink: Callable[[list[Event]], None]) -> Running: ...


class _Answer:
    """Events of one running call, put together; tells the chunk when it is complete. Called by the runtime."""

    def __init__(self, call: OpenCall, ended: Callable[[_Answer], None]) -> None:
        self.call = call
        self.end: Finished | Failed | None = None
        self._ended = ended
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._tools: list[contract.ToolCall] = []
        self._logprobs: list[contract.TokenLogprob] = []
        self._vectors: list[bytes] = []
        self._scores: list[float] = []
        self._dimensions = 0
        self._model = ""

    def __call__(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case contract.Text():
                    self._text.append(event.text)
                    self._logprobs += event.logprobs
                case contract.Reasoning():
                    self._reasoning.append(event.text)
                case contract.ToolCall():
                    self._tools.append(event)
                case contract.Embedded():
                    self._vectors += event.vectors
                    self._dimensions = event.dimensions
                case contract.Scored():
                    self._scores = event.logprobs
                case contract.Admitted():
                    self._model = event.model
                case Finished() | Failed():
                    self.end = event
                    self._ended(self)

    def output(self, end: Finished) -> Output:
        return Output(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=self._tools,
            finish_reason=end.reason,
            stop_sequence=end.stop_sequence,
            usage=end.usage,
            logprobs=self._logprobs,
            vectors=self._vectors,
            dimensions=self._dimensions,
            scores=self._scores,
            model=self._model,
        )


class ChunkRun:
    """One claimed chunk. ``run`` returns when every call is answered, or the chunk is lost or given back."""

    def __init__(self, chunk_id: str, fence: int, runtime: Runtime) -> None:
        self.chunk_id = chunk_id
        self.fence = fence
        self.runtime = runtime
        self._ended: deque[_Answer] = deque()
        self._wake = threading.Condition()
        self._running: dict[int, Running] = {}
        self._to_start: list[tuple[float, OpenCall]] = []
        self._restarts: dict[int, int] = {}
        self._outcomes: list[Outcome] = []
        self._lost = False
        self._payer = Payer()

    def run(self) -> None:
        # Asked before the claim, so that nothing but work stands between a claim and its beat.
        job = RowChunk.objects.filter(id=self.chunk_id).values_list("job", flat=True).first()
        self._payer = Payer.of(job or "")
        calls = chunks.claim(self.chunk_id, self.fence, f"{settings.ENV.host_id}:{secrets.token_hex(6)}")
        if job is None or calls is None:
            log.debug("rows.stale_message", chunk=self.chunk_id, fence=self.fence)
            return
        self._to_start = [(0.0, call) for call in calls]
        try:
            with pulse.beating(self.chunk_id, self.fence, self._on_lost):
                self._work(job)
        except BaseException:
            # Shutdown of the worker, or a fault of ours: free the chunk for the next owner, then say so.
            self._cancel_all("aborted")
            self._give_back(0)
            raise

    def _work(self, job: str) -> None:
        while True:
            if not self._start_due(time.monotonic()):
                self._flush(job, done=False)
                self._cancel_all("aborted")
                self._give_back(GIVE_BACK_SECONDS)
                return
            self._take_ended()
            finished = not self._running and not self._to_start
            if not self._lost and (finished or self._outcomes) and not self._flush(job, done=finished):
                self._lost = True
            if self._lost:
                self._cancel_all("aborted")
                return
            if finished:
                return

    def _on_lost(self) -> None:
        """The chunk is not ours any more: called by the pulse."""
        with self._wake:
            self._lost = True
            self._wake.notify()

    def _start_due(self, now: float) -> bool:
        """Start what is due. False: the host takes nothing more at present and nothing of ours is running."""
        due = [entry for entry in self._to_start if entry[0] <= now]
        for entry in due:
            if self._lost or time.monotonic() - now >= STARTING_SECONDS:
                return True  # long prompts take seconds each to prepare; results must not wait for all of them
            call = entry[1]
            answer = _Answer(call, self._on_end)
            try:
                request = contract.decode_request(call.request)
                attempt = call.attempts + self._restarts.get(call.id, 0)
                running = self.runtime.start(_named(request, f"row_{call.id}_{self.fence}_{attempt}"), answer)
            except Refusal as refusal:
                if refusal.status in NOT_NOW:
                    # Keep it for later; when others of the chunk run, room will come.
                    if not self._running and not self._ended:
                        return False
                    self._to_start = [(now + RESTART_SECONDS if e is entry else e[0], e[1]) for e in self._to_start]
                    return True
                self._outcomes.append(Outcome(call.id, error=_error(refusal.failed())))
            else:
                self._running[call.id] = running
            self._to_start.remove(entry)
        return True

    def _on_end(self, answer: _Answer) -> None:
        with self._wake:
            self._ended.append(answer)
            if self._enough():
                self._wake.notify()

    def _enough(self) -> bool:
        """Whether there is reason to commit now: a good number, or nothing that runs on."""
        return len(self._ended) >= min(COMMIT_RESULTS, len(self._running))

    def _take_ended(self) -> None:
        with self._wake:
            waits = bool(self._running or self._to_start) and not self._outcomes and not self._lost
            if waits and not (self._running and self._enough()):
                self._wake.wait(COMMIT_SECONDS)
            ended = list(self._ended)
            self._ended.clear()
        for answer in ended:
            self._running.pop(answer.call.id, None)
            if isinstance(answer.end, Finished):
                self._outcomes.append(Outcome(answer.call.id, output=answer.output(answer.end)))
            elif isinstance(answer.end, Failed):
                self._on_failed(answer.call, answer.end)

    def _on_failed(self, call: OpenCall, failed: Failed) -> None:
        tried = self._restarts.get(call.id, 0)
        if failed.status in NOT_NOW and tried < RESTARTS:
            self._restarts[call.id] = tried + 1
            self._to_start.append((time.monotonic() + RESTART_SECONDS * 2**tried, call))
            return
        self._outcomes.append(Outcome(call.id, error=_error(failed)))

    def _flush(self, job: str, *, done: bool) -> bool:
        """Commit what is finished; False when the chunk turns out not to be ours.

        A database that is locked, full or away loses nothing: the results are kept here and committed later.
        """
        outcomes, self._outcomes = self._outcomes, []
        while True:
            try:
                ours = chunks.commit(self.chunk_id, self.fence, outcomes, done=done)
                break
            except DatabaseTrouble as error:
                log.warning("rows.commit_delayed", chunk=self.chunk_id, results=len(outcomes), error=type(error).__name__)
                connection.close()
                with self._wake:
                    self._wake.wait_for(lambda: self._lost, COMMIT_RETRY_SECONDS)
                if self._lost:
                    return False
        if not ours:
            log.warning("rows.chunk_lost", chunk=self.chunk_id, fence=self.fence, dropped=len(outcomes))
            return False
        if outcomes:
            announce(job, [outcome.call for outcome in outcomes])
            self._payer.count([outcome.output for outcome in outcomes if outcome.output is not None])
        return True

    def _give_back(self, delay: float) -> None:
        try:
            chunks.give_back(self.chunk_id, self.fence, delay_s=delay)
        except DatabaseTrouble as error:
            log.warning("rows.not_given_back", chunk=self.chunk_id, error=type(error).__name__)  # found by its silence

    def _cancel_all(self, reason: str) -> None:
        for running in self._running.values():
            running.cancel(reason)
        self._running.clear()


def _named(request: InferenceRequest, request_id: str) -> InferenceRequest:
    return msgspec.structs.replace(request, id=request_id, priority="row", frames="", background=False, stored=False)


def _error(failed: Failed) -> RowError:
    return RowError(failed.code, failed.message, failed.status, failed.param)


@dramatiq.actor(
    broker=get_broker(),
    queue_name=queues.rows(settings.ENV.host_id),
    actor_name=queues.RUN_CHUNK,
)
def run_chunk(chunk_id: str, fence: int) -> None:
    from workers.host.runtime import runtime

    try:
        ChunkRun(chunk_id, fence, runtime()).run()
    finally:
        close_old_connections()
