"""The host's front door: a request comes in, is prepared, admitted to an engine, and answered through its sink.

Used by actors of this process only (chat, rows of batches). Knows no Redis and no Dramatiq. ``start`` blocks
for as long as preparation takes; everything after that happens on the engine's reader thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from mlxplatform.inference.contract import Event, Failed, Finished, InferenceRequest, Refusal
from mlxplatform.library import local_adapters, local_models
from mlxplatform.library.local_models import LocalModel
from mlxplatform.library.presets import Choices, with_preset
from workers.host.engine import Engine, EngineGone
from workers.host.gpu_lease import Gate
from workers.host.journal import Entry, Follows, Sink, new_number
from workers.host.pressure import Pressure
from workers.host.residency import Residency
from workers.host.settings import Settings, from_environment
from workers.prepare.client import Preparer
from workers.prepare.model import UNSTATED_CONTEXT

log = structlog.get_logger(__name__)

#: Seconds a client is told to wait when the line is full: about one short answer.
QUEUE_RETRY_AFTER = 2
#: Cancellations remembered for requests that have not arrived yet (a cancel may overtake its request).
EARLY_CANCELS = 10_000
#: Bytes of prepared pictures that may wait or run at once; beyond it the line is full.
MOST_PICTURE_BYTES = 512 * 1024 * 1024
#: Longest preparation of a prompt with pictures, the start of its process (5 to 10 s) included.
SEEING_SECONDS = 60.0
#: A request's word for "no adapter", as if the field were absent.
NO_ADAPTER = "none"

CANCELLED = Failed("cancelled", "The request was cancelled.", 499)


class Running:
    """A request under way. ``done`` is set after the last event was delivered."""

    def __init__(self, entry: Entry, engine: Engine, forget: Callable[[Running], None]):
        self._entry, self._engine, self._forget = entry, engine, forget

    @property
    def request(self) -> InferenceRequest:
        return self._entry.request

    @property
    def picture_bytes(self) -> int:
        """What its prepared pictures take."""
        return len(self._entry.prepared.pictures)

    @property
    def done(self) -> threading.Event:
        return self._entry.done

    @property
    def outcome(self) -> Finished | Failed | None:
        """The last event once ``done`` is set."""
        return self._entry.outcome

    def cancel(self, reason: str = "") -> None:
        """End it within one step; the last event is then ``Failed("cancelled", …)``."""
        log.info("request.cancelled", request=self.request.id, reason=reason, tokens=len(self._entry.emitted))
        self._engine.cancel(self._entry, CANCELLED)


class Cancellable(Protocol):
    """A request that can be told to stop: a :class:`Running` one, or another child's work that is attended here."""

    @property
    def request(self) -> InferenceRequest: ...

    def cancel(self, reason: str = "") -> None: ...


class HostRuntime:
    """Everything that runs inference on this host."""

    def __init__(self, settings: Settings, *, gated: Callable[[Engine, str], Gate] | None = None):
        self.settings = settings
        self.on_flush: list[Callable[[], None]] = []
        self.residency = Residency(
            settings.host,
            self._budget(),
            settings.engine_options,
            self._flush,
            settings.dtype,
            settings.keep_alive,
            gated,
            beside=settings.draft_bytes,
        )
        self.pressure = Pressure(self.residency, settings.memory_floor)
        self._preparer = Preparer()
        self._preparer.start()
        # One call at a time: a picture takes hundreds of times the memory of its file while it is prepared.
        self._seeing = Preparer(children=1, seconds=SEEING_SECONDS, module="workers.vision.child")
        self._running: dict[str, Cancellable] = {}
        self._cancelled: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        #: What people chose for models; replaced as a whole when it changes.
        self.choices = Choices()

    # -- requests ----------------------------------------------------------------------------------------

    def start(
        self, request: InferenceRequest, sink: Sink, emitted: Sequence[int] = (), pictures: Sequence[bytes] = ()
    ) -> Running:
        """Prepare and admit one request, or go on with one that said ``emitted`` in an earlier process. ``pictures`` are the
        files of its images.

        ``sink`` gets lists of events, ``Admitted`` first, ``Finished`` or ``Failed`` last, from another thread,
        and must not block.

        Raises:
            Refusal: it is not going to run; the sink was not called.
        """
        asked, request = request.model, self._base_and_adapter(request)
        model = self._model(request)
        if self.residency.pressure is not None:
            raise self.residency.pressure
        if request.kind in {"chat", "completion"}:
            request = with_preset(request, self.choices.preset_of(asked, model.id))
        self._check_room(request, model)
        adapters = self._adapters(request, model)
        preparer = self._preparer_of(request, model)
        prepared = preparer.prepare(request, model.path, self.context_of(model, asked), list(pictures))
        for _ in range(3):  # an engine may be evicted between being found and being used
            # A chunk of rows has others to look after and comes again.
            wait = self.settings.room_wait if request.priority == "interactive" else 0.0
            engine = self.residency.obtain(model, wait, lambda: request.id in self._cancelled)
            entry = Entry(
                new_number(),
                request,
                prepared,
                engine.tokenizer,
                self._closing(request.id, sink),
                adapters,
                emitted=list(emitted),
            )
            if request.outlives and isinstance(sink, Follows):
                sink.follow(entry.emitted)
            running = Running(entry, engine, self._forget)
            with self._lock:
                if self._cancelled.pop(request.id, 0) is None:
                    raise Refusal.from_failed(CANCELLED)
                self._running[request.id] = running
            try:
                engine.submit(entry)
            except EngineGone:
                self._forget(running)
                continue
            return running
        raise Refusal(503, "engine_unavailable", "The engine is not available.", retry_after=5)

    def count(self, request: InferenceRequest, pictures: Sequence[bytes] = ()) -> int:
        """Prompt tokens of a request, without loading its model.

        Raises:
            Refusal: as admission would.
        """
        model = self._model(self._base_and_adapter(request))
        return self._preparer_of(request, model).count(request, model.path, list(pictures))

    def cancel(self, request_id: str, reason: str = "") -> None:
        """Cancel by id, in whatever phase; also when the request has not arrived yet."""
        with self._lock:
            running = self._running.get(request_id)
            if running is None:
                self._cancelled[request_id] = None
                while len(self._cancelled) > EARLY_CANCELS:
                    self._cancelled.popitem(last=False)
        if running is not None:
            running.cancel(reason)

    def attend(self, work: Cancellable) -> None:
        """Let cancels reach work that no engine does.

        Raises:
            Refusal: it was cancelled before it arrived.
        """
        with self._lock:
            if self._cancelled.pop(work.request.id, 0) is None:
                raise Refusal.from_failed(CANCELLED)
            self._running[work.request.id] = work

    def dismiss(self, work: Cancellable) -> None:
        """It has ended."""
        with self._lock:
            self._running.pop(work.request.id, None)

    def cancel_channel(self, frames: str) -> None:
        """Cancel what a web process waited for that no longer listens.

        Background requests run on; a stored stream does while its client may come back (:mod:`workers.host.stored`).
        """
        with self._lock:
            waiting = [r for r in self._running.values() if r.request.frames == frames]
        lost = [r for r in waiting if not r.request.outlives]
        for running in lost:
            running.cancel("web process gone")

    def running(self) -> list[Cancellable]:
        with self._lock:
            return list(self._running.values())

    def _preparer_of(self, request: InferenceRequest, model: LocalModel) -> Preparer:
        if not request.images:
            return self._preparer
        if not self.settings.sees(model):
            raise Refusal(400, "unsupported_content", "The model takes no images.", param=request.images[0].param)
        return self._seeing

    def current_model(self, kind: local_models.Kind = "chat") -> LocalModel | None:
        """The model that answers when none is named: the chosen one while it is here, else the configured one."""
        chosen = local_models.find(self.choices.defaults.get(kind), self.settings.home)
        return chosen or local_models.default_for(kind, self.settings.home)

    def context_of(self, model: LocalModel, asked: str = "") -> int:
        """The window in tokens that requests to a model, or to a fine-tuned name of it, get on this host."""
        chosen = self.choices.preset_of(asked, model.id).get("context", 0)
        return min(filter(None, (chosen, self.settings.window(model))), default=UNSTATED_CONTEXT)

    def choose(self, choices: Choices) -> None:
        """Take over what people chose; pins are set to exactly these."""
        self.choices = choices
        self.residency.pin_only(choices.pinned)

    def warm(self) -> None:
        """Load the current model before anybody asks, if there is one and it fits."""
        model = self.current_model()
        if model is None:
            log.warning("engine.no_model", hint="import a model: python manage.py models import")
            return
        try:
            self.residency.obtain(model)
        except Refusal as refusal:
            log.error("engine.not_loaded", model=model.id, reason=refusal.message)

    def mount(self, adapter_id: str) -> None:
        """Mount an adapter before anybody asks for it, loading its base model when needed.

        Raises:
            Refusal: there is no such adapter, or no room for its model.
        """
        adapter = local_adapters.find(adapter_id, self.settings.home)
        model = local_models.find(adapter.base_model, self.settings.home) if adapter is not None else None
        if adapter is None or model is None:
            raise Refusal(404, "adapter_not_found", "There is no such adapter for a model of this host.", param="id")
        self.residency.obtain(model).mount(adapter.id, adapter.path)

    def unmount(self, adapter_id: str) -> None:
        for engine in self.residency.engines():
            engine.forget_adapter(adapter_id)

    def look_after(self) -> None:
        """Upkeep, once a second: places in line told, unused models unloaded, memory looked at."""
        for engine in self.residency.engines():
            engine.tell_positions()
        self.residency.unload_idle()
        self.pressure.look()

    def close(self) -> None:
        self.residency.close()
        self._preparer.close()
        self._seeing.close()

    # -- inside ------------------------------------------------------------------------------------------

    def _base_and_adapter(self, request: InferenceRequest) -> InferenceRequest:
        """A request for a fine-tuned name as one for its base model with its adapter; adapter "none" as no adapter."""
        if request.adapter == NO_ADAPTER:
            request = msgspec.structs.replace(request, adapter=None)
        tuned = local_adapters.find_name(request.model, self.settings.home)
        if tuned is None:
            return request
        if not tuned.usable_by(request.project):
            raise _unknown_model(request)
        joined = "+".join(filter(None, (tuned.id, request.adapter)))
        return msgspec.structs.replace(request, model=tuned.base_model, adapter=joined)

    def _model(self, request: InferenceRequest) -> LocalModel:
        model = local_models.find(request.model, self.settings.home)
        if model is None:
            raise _unknown_model(request)
        return model

    def _adapters(self, request: InferenceRequest, model: LocalModel) -> dict[str, Path]:
        """Folders of the adapters a request names; several are joined with +."""
        found: dict[str, Path] = {}
        for name in request.adapter.split("+") if request.adapter else []:
            adapter = local_adapters.find(name, self.settings.home)
            if adapter is None or not adapter.usable_by(request.project):
                raise Refusal(404, "adapter_not_found", f"The adapter {name!r} does not exist on this host.", param="adapter")
            if adapter.base_model and adapter.base_model != model.id:
                message = f"The adapter {name!r} was made for {adapter.base_model}, not for {model.id}."
                raise Refusal(400, "adapter_mismatch", message, param="adapter")
            found[name] = adapter.path
        return found

    def _check_room(self, request: InferenceRequest, model: LocalModel) -> None:
        if request.priority == "row":
            return
        engine = self.residency.get(model.id)
        ahead = engine.count(rows=False) if engine is not None else 0
        if request.images:
            held = sum(one.picture_bytes for one in self.running() if isinstance(one, Running))
            if held >= MOST_PICTURE_BYTES:
                raise Refusal(
                    429, "queue_full", "Too many pictures are waiting. Try again shortly.", retry_after=QUEUE_RETRY_AFTER
                )
        if ahead >= self.settings.slots + self.settings.queue_limit:
            raise Refusal(429, "queue_full", "Too many requests are waiting. Try again shortly.", retry_after=QUEUE_RETRY_AFTER)

    def _closing(self, request_id: str, sink: Sink) -> Sink:
        def deliver(events: list[Event]) -> None:
            if events and isinstance(events[-1], Finished | Failed):
                with self._lock:
                    self._running.pop(request_id, None)
            sink(events)

        return deliver

    def _forget(self, running: Running) -> None:
        with self._lock:
            self._running.pop(running.request.id, None)

    def _flush(self) -> None:
        for flush in self.on_flush:
            flush()

    def _budget(self) -> int:
        from workers.engine.platform import memory_budget

        return memory_budget(self.settings.budget)


def _unknown_model(request: InferenceRequest) -> Refusal:
    return Refusal(404, "model_not_found", f"The model {request.model!r} does not exist on this host.", param="model")


_runtime: HostRuntime | None = None
_runtime_lock = threading.Lock()


def runtime() -> HostRuntime:
    """The process-wide runtime, made from Django's settings at first use."""
    from mlxplatform.broker.connections import sync_client
    from workers.host.gpu_lease import keepers

    global _runtime
    with _runtime_lock:
        if _runtime is None:
            chosen = from_environment()
            _runtime = HostRuntime(chosen, gated=keepers(sync_client(), chosen.host))
        return _runtime
