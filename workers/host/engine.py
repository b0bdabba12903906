"""One model being served: its child, the requests in it, and bringing both back after a death.

States: ``loading`` → ``ready`` → ``restarting`` → ``ready`` …, and the ends ``failed`` (the model cannot be
loaded, or dies again and again before it is ready) and ``stopped`` (unloaded on purpose). Requests may be
handed in while loading or restarting; they are sent on when the child is ready. Sinks are called from the
child's reader thread with this engine's lock held and must not block.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

import structlog
from tokenizers import Tokenizer

from mlxplatform.inference.contract import Admitted, Embedded, Event, Failed, Finished, Scored, Usage, Waiting
from mlxplatform.library.local_models import LocalModel
from workers.engine import protocol
from workers.host import healing
from workers.host.child import EngineChild
from workers.host.gpu_lease import PASSED, Gate
from workers.host.journal import Entry, new_number

log = structlog.get_logger(__name__)

State = Literal["loading", "ready", "restarting", "failed", "stopped"]

#: Deaths in a row before ready after which the model counts as not loadable.
MAX_START_DEATHS = 3
#: Seconds before the n-th start after a death, so that a crash loop does not eat the machine.
RESTART_DELAYS = (0.0, 0.5, 2.0)


class EngineGone(Exception):
    """The engine was stopped between being found and being used; look again."""


class Engine:
    """Serves one model. All methods may be called from any thread."""

    def __init__(
        self,
        model: LocalModel,
        options: Mapping[str, object],
        host: str,
        flush: Callable[[], None],
        on_end: Callable[[Engine], None],
        gated: Callable[[Engine, str], Gate] | None = None,
    ):
        self.model = model
        self.tokenizer = Tokenizer.from_file(str(model.path / "tokenizer.json"))
        self.state: State = "loading"
        self.facts: dict[str, Any] = {}
        self.stats: dict[str, float] = {}
        self.restarts = 0
        self.last_used = time.monotonic()
        self.pinned = False
        self.load_seconds = 0.0
        self._options, self._host, self._flush, self._on_end = dict(options), host, flush, on_end
        self._lock = threading.RLock()
        self._entries: dict[int, Entry] = {}
        self._sent: set[int] = set()
        self._mounted: set[str] = set()
        self._suspects: deque[Entry] = deque()
        self._trial: Entry | None = None
        self._start_deaths = 0
        self._deadline = 0.0
        self._began = time.monotonic()
        self._ready = threading.Event()
        self._gate = gated(self, model.id) if gated is not None else None
        if self._gate is not None:
            self._deadline = PASSED
        self._child = self._launch()

    # -- for the runtime ---------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> int:
        return len(self._entries)

    @property
    def busy(self) -> bool:
        return bool(self._entries)

    def count(self, *, rows: bool) -> int:
        with self._lock:
            return sum(entry.is_row == rows for entry in self._entries.values())

    def waiting(self) -> int:
        """Interactive requests beyond the slots."""
        return max(0, self.count(rows=False) - int(str(self._options["slots"])))

    def submit(self, entry: Entry) -> None:
        """Take a request over. It is answered through its sink from now on.

        Raises:
            EngineGone: stopped or failed; nothing was taken.
        """
        with self._lock:
            if self.state in ("stopped", "failed"):
                raise EngineGone
            self.last_used = time.monotonic()
            self._entries[entry.seq] = entry
            if self.state == "ready" and self._trial is None and not self._suspects and self._admit(entry):
                self._send(entry)
            self._flush()
        if self._gate is not None:
            self._gate.wake()

    def cancel(self, entry: Entry, failed: Failed) -> None:
        """End a request with ``failed``; harmless when it has ended already."""
        with self._lock:
            if self._entries.get(entry.seq) is not entry:
                return
            self._child.send(protocol.Cancel(entry.seq))
            self._close(entry, entry.fail(failed))
            self._flush()

    def wait_ready(self, seconds: float) -> bool:
        """Whether the engine became ready in time."""
        return self._ready.wait(seconds) and self.state == "ready"

    def work_class(self) -> str | None:
        """The better class of work there is: interactive, rows or None."""
        with self._lock:
            if not self._entries:
                return None
            return "rows" if all(entry.is_row for entry in self._entries.values()) else "interactive"

    def tell_waiting(self, reason: str) -> None:
        """Say to every admitted request that it waits, and for what."""
        with self._lock:
            for entry in self._entries.values():
                if entry.admitted:
                    entry.sink([Waiting(0, None, reason)])
            self._flush()

    def tell_positions(self) -> None:
        """Tell requests that wait for a slot where they stand, when that changed."""
        with self._lock:
            waiting = [entry for entry in self._entries.values() if entry.waits and not entry.is_row]
            free = max(0, int(str(self._options["slots"])) - (self.count(rows=False) - len(waiting)))
            for position, entry in enumerate(waiting[free:], start=1):
                if entry.position != position:
                    entry.position = position
                    entry.sink([Waiting(position, None, "queue")])
            self._flush()

    def set_deadline(self, monotonic: float) -> None:
        """Until when the child may use the GPU."""
        self._deadline = monotonic
        self._child.send(protocol.Deadline(monotonic))

    def forget_adapter(self, name: str) -> None:
        """Unmount an adapter, so that the next request naming it reads it again."""
        with self._lock:
            self._mounted.discard(name)
            self._child.send(protocol.Unmount(0, name))

    def flush_prefix_cache(self) -> None:
        self._child.send(protocol.Flush())

    def kill(self) -> None:
        """End the child by force; it comes back by itself."""
        self._child.kill()

    def stop(self, failed: Failed | None = None) -> None:
        """Unload: requests still here end with ``failed``; returns when the process is gone."""
        with self._lock:
            if self.state == "stopped":
                return
            self.state = "stopped"
            self._fail_all(failed or Failed("engine_unavailable", "The model was unloaded.", 503, retry_after=1))
        if self._gate is not None:
            self._gate.stop()
            self._gate.resident(0)
        self._child.quit()
        self._on_end(self)

    # -- the child ---------------------------------------------------------------------------------------

    def _launch(self) -> EngineChild:
        child = EngineChild(self.model.path, self._options, self._on_report, self._on_exit)
        self._child = child
        child.listen()
        return child

    def _on_report(self, child: EngineChild, report: Any) -> None:
        with self._lock:
            if child is not self._child or self.state == "stopped":
                return
            match report:
                case protocol.Step():
                    self._on_step(report)
                case protocol.Stats():
                    self.stats = report.values
                case protocol.Ready():
                    self._on_ready(report)
                case protocol.Vectors():
                    self._on_vectors(report)
                case protocol.Scores():
                    self._on_scores(report)
                case protocol.Mounted():
                    if report.error:
                        log.warning("engine.adapter_refused", model=self.model.id, reason=report.error)
                case protocol.LoadFailed():
                    log.error("engine.load_failed", model=self.model.id, reason=report.message, detail=report.detail)
                    self._end(Failed("model_load_failed", report.message, 502))
            self._flush()

    def _on_ready(self, report: protocol.Ready) -> None:
        self.facts = report.facts
        self._mounted.clear()
        self.load_seconds = round(time.monotonic() - self._began, 3)
        self.state = "ready"
        self._start_deaths = 0
        self._ready.set()
        log.info("engine.ready", model=self.model.id, after_seconds=self.load_seconds, **report.facts)
        if self._deadline:
            self._child.send(protocol.Deadline(self._deadline))
        if self._gate is not None:
            self._gate.resident(int(self.facts.get("weight_bytes", 0)))
        self._resume()

    def _on_exit(self, child: EngineChild, status: int | None) -> None:
        with self._lock:
            if child is not self._child or self.state in ("stopped", "failed"):
                return
            log.error("engine.died", model=self.model.id, pid=child.pid, status=status, requests=len(self._entries))
            self.restarts += 1
            self._start_deaths = self._start_deaths + 1 if self.state != "ready" else 0
            self.state = "restarting"
            self._ready.clear()
            self._judge()
            if self._start_deaths >= MAX_START_DEATHS:
                self._end(Failed("engine_unavailable", "The engine keeps failing to start.", 503, retry_after=30))
                self._flush()
                return
            for entry in self._entries.values():
                if entry.admitted:
                    entry.sink([Waiting(0, None, "restart")])
            self._flush()
            delay = RESTART_DELAYS[min(self._start_deaths, len(RESTART_DELAYS) - 1)]
        threading.Timer(delay, self._relaunch).start()

    def _relaunch(self) -> None:
        with self._lock:
            if self.state != "restarting":
                return
            self._began = time.monotonic()
            try:
                self._launch()
            except OSError as error:
                log.error("engine.cannot_start", model=self.model.id, reason=str(error))
                self._end(Failed("engine_unavailable", "The engine cannot be started.", 503, retry_after=30))
                self._flush()

    def _judge(self) -> None:
        present = [entry for entry in self._entries.values() if entry.seq in self._sent]
        waiting = [entry for entry in self._entries.values() if entry.seq not in self._sent and entry not in self._suspects]
        verdict = healing.after_death(present, waiting)
        if verdict.culprit is not None:
            culprit = verdict.culprit
            log.error("engine.poisoned", model=self.model.id, request=culprit.request.id, deaths=culprit.deaths)
            message = "This request ended the engine twice and is not tried again."
            self._close(culprit, culprit.fail(Failed("engine_poisoned", message, 500)))
        self._sent.clear()
        self._trial = None
        self._suspects = deque([*verdict.one_by_one, *(entry for entry in self._suspects if entry.outcome is None)])

    def _resume(self) -> None:
        """Send what may run now: one suspect alone, or everybody."""
        if self._suspects:
            self._hold_back()
        while self._suspects:
            self._trial = self._suspects.popleft()
            if self._trial.outcome is None and self._admit(self._trial):
                self._send(self._trial)
                return
        self._trial = None
        for entry in list(self._entries.values()):
            if entry.seq not in self._sent and self._admit(entry):
                self._send(entry)

    def _hold_back(self) -> None:
        """Take what runs out of the child, so that the next suspect is alone; it goes on afterwards.

        Under a new number, since tokens of the old one may still be on their way.
        """
        for entry in [entry for entry in self._entries.values() if entry.seq in self._sent]:
            self._child.send(protocol.Cancel(entry.seq))
            self._sent.discard(entry.seq)
            del self._entries[entry.seq]
            entry.seq = new_number()
            self._entries[entry.seq] = entry

    # -- requests ----------------------------------------------------------------------------------------

    def _admit(self, entry: Entry) -> bool:
        """Say so to its client; False when the prompt can never fit into memory, after which it has ended."""
        if entry.admitted:
            return True
        room = int(self.facts.get("kv_tokens", 0))
        prompt = len(entry.prepared.prompt_ids)
        if room and entry.request.kind != "embedding" and prompt >= room:
            message = (
                f"The prompt has {prompt} tokens and the memory budget holds {room}. "
                "Shorten the prompt or give the engines more memory."
            )
            self._close(entry, entry.fail(Failed("context_over_budget", message, 400, "messages")))
            return False
        if room:
            entry.room = room - prompt
        entry.admitted = True
        events: list[Event] = [Admitted(len(entry.prepared.prompt_ids), self.model.id, self._host)]
        if not entry.is_row and (position := self.waiting()):
            entry.position = position
            events.append(Waiting(position, None, "queue"))
        entry.sink(events)
        return True

    def _send(self, entry: Entry) -> None:
        self._sent.add(entry.seq)
        request, prepared = entry.request, entry.prepared
        for name, path in entry.adapters.items():
            if name not in self._mounted:
                # In front of the request on the same socket: it is there in time. Its refusal is the request's.
                self._mounted.add(name)
                self._child.send(protocol.Mount(0, name, str(path)))
        if request.kind == "embedding":
            self._child.send(protocol.Embed(entry.seq, prepared.inputs, request.priority, request.dimensions))
        elif request.kind == "score":
            self._child.send(protocol.Score(entry.seq, prepared.prompt_ids, prepared.labels, request.priority, request.adapter))
        else:
            self._child.send(entry.start_order())

    def _on_step(self, step: protocol.Step) -> None:
        news: dict[int, list[Event]] = {}
        for progress in step.progress:
            if (entry := self._entries.get(progress.seq)) is not None:
                entry.prefilled = progress.done
                entry.cached = entry.cached or progress.cached
        for token in step.tokens:
            if (entry := self._entries.get(token.seq)) is None:
                continue
            events, stop = entry.take(token)
            if events:
                news.setdefault(entry.seq, []).extend(events)
            if stop is not None:
                self._child.send(protocol.Cancel(entry.seq))
                self._close(entry, news.pop(entry.seq, []) + entry.finish("stop", stop))
        for seq, events in news.items():
            ended = next((end for end in step.ended if end.seq == seq), None)
            if ended is None and (entry := self._entries.get(seq)) is not None:
                entry.sink(events)
        for ended in step.ended:
            if (entry := self._entries.get(ended.seq)) is not None:
                self._close(entry, news.get(ended.seq, []) + entry.finish(ended.reason))
        for broken in step.broken:
            if (entry := self._entries.get(broken.seq)) is not None:
                self._close(entry, entry.fail(Failed(broken.code, broken.message, broken.status, broken.param)))
        if self._trial is not None and healing.acquitted(self._trial):
            self._resume()

    def _on_vectors(self, report: protocol.Vectors) -> None:
        if (entry := self._entries.get(report.seq)) is not None:
            entry.outcome = Finished("stop", Usage(prompt=report.tokens))
            self._close(entry, [Embedded(report.vectors, report.dimensions), entry.outcome])

    def _on_scores(self, report: protocol.Scores) -> None:
        if (entry := self._entries.get(report.seq)) is not None:
            entry.outcome = Finished("stop", Usage(prompt=len(entry.prepared.prompt_ids), cached=report.cached))
            self._close(entry, [Scored(report.logprobs), entry.outcome])

    def _close(self, entry: Entry, events: list[Event]) -> None:
        """Deliver the last events and forget the request."""
        self._entries.pop(entry.seq, None)
        self._sent.discard(entry.seq)
        self.last_used = time.monotonic()
        entry.sink(events)
        entry.done.set()
        if entry is self._trial and self.state == "ready":
            self._resume()

    def _fail_all(self, failed: Failed) -> None:
        for entry in list(self._entries.values()):
            self._close(entry, entry.fail(failed))
        self._flush()

    def _end(self, failed: Failed) -> None:
        self.state = "failed"
        self._ready.set()
        if self._gate is not None:
            self._gate.stop()
        self._fail_all(failed)
        self._on_end(self)
