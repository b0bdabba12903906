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
from pathlib import Path
from typing import Any, Literal

import structlog
from tokenizers import Tokenizer

from mlxplatform.inference.contract import Admitted, Event, Failed, Waiting
from mlxplatform.library.local_models import LocalModel
from workers.engine import protocol
from workers.host import answering, healing
from workers.host.child import EngineChild
from workers.host.gpu_lease import PASSED, Gate
from workers.host.journal import Entry, new_number
from workers.host.mounts import Mounts
from workers.host.watch import Patience

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
        patience: Patience = Patience(),  # noqa: B008  frozen
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
        self._patience = patience
        self._lock = threading.RLock()
        self._entries: dict[int, Entry] = {}
        self._sent: set[int] = set()
        self.mounts = Mounts(lambda order: self._child.send(order))
        #: Adapters mounted by hand: a new child gets them again.
        self._wanted: dict[str, Path] = {}
        self._suspects: deque[Entry] = deque()
        self._trial: Entry | None = None
        self._start_deaths = 0
        self._deadline = 0.0
        self._began = time.monotonic()
        self._ready = threading.Event()
        #: Bytes the present child was told it may use.
        self._told_budget: object = None
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
        return max(0, self.count(rows=False) - self.slots)

    @property
    def slots(self) -> int:
        """Sequences that may run at once, as the child says once it is there."""
        return int(self.facts.get("slots") or str(self._options["slots"]))

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
            # The keeper asks for the lease in the best class of work there is; one more of a class is no news to it.
            news = len(self._entries) == 1 or (not entry.is_row and self.count(rows=False) == 1)
            if self.state == "ready" and self._trial is None and not self._suspects and self._admit(entry):
                self._send(entry)
            self._flush()
        if self._gate is not None and news:
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
            free = max(0, self.slots - (self.count(rows=False) - len(waiting)))
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
        """Unmount an adapter once nothing here uses it, so that the next request naming it reads it again."""
        with self._lock:
            self._wanted.pop(name, None)
            self.mounts.forget(name, self._adapters_in_use())

    def mount(self, name: str, path: Path) -> None:
        """Mount an adapter before anybody asks for it; ``mounts.listing()`` tells how that went."""
        with self._lock:
            self.last_used = time.monotonic()
            self._wanted[name] = path
            if self.state == "ready":
                self.mounts.need({name: path})

    def _adapters_in_use(self) -> set[str]:
        return {name for entry in self._entries.values() for name in entry.adapters}

    def flush_prefix_cache(self) -> None:
        self._child.send(protocol.Flush())

    def set_room(self, budget: int) -> None:
        """Bytes this engine may use from now on, its weights included."""
        with self._lock:
            if self._options.get("budget") == budget:
                return
            self._options["budget"] = budget  # also for a child that comes after a death
            if self.state == "ready":
                self._tell_room()

    def _tell_room(self) -> None:
        if self._told_budget != self._options.get("budget"):
            self._told_budget = self._options["budget"]
            self._child.send(protocol.Room(int(str(self._told_budget))))

    def shrink(self) -> None:
        """Give back memory that nobody would miss at once."""
        self._child.send(protocol.Shrink())

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
        child = EngineChild(self.model.path, self._options, self._on_report, self._on_exit, self._patience)
        self._told_budget = self._options.get("budget")
        self._child = child
        child.listen()
        return child

    def _on_report(self, child: EngineChild, report: Any) -> None:
        with self._lock:
            if child is not self._child or self.state == "stopped":
                return
            match report:
                case protocol.Step():
                    self._deliver(answering.of_step(report, self._entries))
                case protocol.Stats():
                    self.stats = report.values
                case protocol.Ready():
                    self._on_ready(report)
                case protocol.Facts():
                    self.facts = {**self.facts, **report.facts}
                case protocol.Vectors():
                    self._deliver(answering.of_vectors(report, self._entries))
                case protocol.Scores():
                    self._deliver(answering.of_scores(report, self._entries))
                case protocol.Mounted():
                    self.mounts.answered(report)
                    if report.error:
                        self._wanted.pop(report.name, None)
                        log.warning("engine.adapter_refused", model=self.model.id, adapter=report.name, reason=report.error)
                case protocol.LoadFailed():
                    log.error("engine.load_failed", model=self.model.id, reason=report.message, detail=report.detail)
                    self._end(Failed(report.code, report.message, report.status))
            self._flush()

    def _on_ready(self, report: protocol.Ready) -> None:
        self.facts = report.facts
        self.mounts.reset()
        self.mounts.need(self._wanted)
        self.load_seconds = round(time.monotonic() - self._began, 3)
        self.state = "ready"
        self._start_deaths = 0
        self._ready.set()
        self._tell_room()
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
        told = [] if entry.resumed else [Admitted(len(entry.prepared.prompt_ids), self.model.id, self._host)]
        events: list[Event] = [*told]
        if not entry.is_row and (position := self.waiting()):
            entry.position = position
            events.append(Waiting(position, None, "queue"))
        entry.sink(events)
        return True

    def _send(self, entry: Entry) -> None:
        self._sent.add(entry.seq)
        request, prepared = entry.request, entry.prepared
        self.mounts.need(entry.adapters)
        if request.kind == "embedding":
            self._child.send(protocol.Embed(entry.seq, prepared.inputs, request.priority, request.dimensions))
        elif request.kind == "score":
            self._child.send(protocol.Score(entry.seq, prepared.prompt_ids, prepared.labels, request.priority, request.adapter))
        else:
            self._child.send(entry.start_order())

    def _deliver(self, answers: list[answering.Answer]) -> None:
        for answer in answers:
            if answer.halt:
                self._child.send(protocol.Cancel(answer.entry.seq))
            if answer.over:
                self._close(answer.entry, answer.events)
            else:
                answer.entry.sink(answer.events)
        if self._trial is not None and healing.acquitted(self._trial):
            self._resume()

    def _close(self, entry: Entry, events: list[Event]) -> None:
        """Deliver the last events and forget the request."""
        self._entries.pop(entry.seq, None)
        self._sent.discard(entry.seq)
        self.last_used = time.monotonic()
        if entry.adapters:
            self.mounts.settle(self._adapters_in_use())
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
