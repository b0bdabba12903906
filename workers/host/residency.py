"""Which models are in memory on this host: load on demand, least recently used out, never one in use.

One engine child per model. The bytes declared are the weights as this machine holds them; the budget is the
machine's. Reading about a model never loads it; only a request or a person does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from mlxplatform.inference.contract import Refusal
from mlxplatform.library.local_models import LocalModel
from workers.engine import platform
from workers.host.engine import Engine
from workers.host.gpu_lease import Gate
from workers.host.watch import Patience

log = structlog.get_logger(__name__)

#: Weights are not everything a child holds: interpreter, mlx, buffers. Measured 110 MiB with an empty model.
CHILD_OVERHEAD = 120 * 1024 * 1024


def declared_bytes(model: LocalModel, dtype: str) -> int:
    """Bytes the model's weights take in memory on this machine, plus what any engine child takes."""
    device = "metal" if sys.platform == "darwin" else "cpu"
    width = {"float32": 4, "bfloat16": 2, "float16": 2}.get(platform.resident_dtype(dtype, device))
    return (model.bytes if width is None else model.parameters * width) + CHILD_OVERHEAD


#: Seconds between looks at whether a model in use has fallen idle.
IN_USE_SECONDS = 0.1


class _InUse(Exception):
    """There would be room if what is resident were not in use or pinned."""

    def __init__(self, refusal: Refusal):
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True)
class Plan:
    """What loading a model would take: ``evict`` are the ids that would go; ``fits`` whether that is enough."""

    model: str
    needed: int
    budget: int
    used: int
    evict: tuple[str, ...]
    fits: bool


class Residency:
    """The engines of one host."""

    def __init__(
        self,
        host: str,
        budget: int,
        options: Callable[[LocalModel, int], Mapping[str, object]],
        flush: Callable[[], None],
        dtype: str = "auto",
        idle_seconds: float = 0.0,
        gated: Callable[[Engine, str], Gate] | None = None,
        patience: Patience = Patience(),  # noqa: B008  frozen
        beside: Callable[[LocalModel], int] = lambda model: 0,
    ):
        """``beside``: bytes a child holds besides its model's, such as a draft model's."""
        self.host, self.budget, self.dtype, self.idle_seconds = host, budget, dtype, idle_seconds
        #: Command line of an engine child from its model and the bytes it may use.
        self._options, self._flush, self._gated = options, flush, gated
        self._beside = beside
        #: How long a child may be silent before it counts as hung.
        self.patience = patience
        self._engines: dict[str, Engine] = {}
        #: Models being started, and what each will take; set when its engine is there, or could not be made.
        self._starting: dict[str, tuple[int, threading.Event]] = {}
        self._leaving: list[threading.Event] = []
        self._pinned: set[str] = set()
        #: Models whose last load or restart failed; forgotten at the next try.
        self.failed: set[str] = set()
        self._lock = threading.RLock()
        self._closed = False
        #: Why nothing may be loaded now: set and lifted by the look at the machine's memory.
        self.pressure: Refusal | None = None

    def engines(self) -> list[Engine]:
        with self._lock:
            return list(self._engines.values())

    def get(self, model_id: str) -> Engine | None:
        with self._lock:
            return self._engines.get(model_id)

    def obtain(self, model: LocalModel, wait: float = 0.0, given_up: Callable[[], bool] = lambda: False) -> Engine:
        """The engine of a model, started when it is not there.

        While everything it would have to put out is in use, it waits up to ``wait`` seconds for one of them to fall idle,
        unless ``given_up`` says that nobody wants it any more.

        Raises:
            Refusal: 503 while stopping or while everything resident is in use, 400 when it can never fit.
        """
        deadline = time.monotonic() + wait
        while True:
            try:
                with self._lock:
                    found = self._look_up(model)
            except _InUse as in_use:
                if time.monotonic() >= deadline or given_up():
                    raise in_use.refusal from None
                time.sleep(IN_USE_SECONDS)
                continue
            if isinstance(found, Engine):
                return found
            if found is None:
                return self._start(model)
            found.wait()

    def _look_up(self, model: LocalModel) -> Engine | threading.Event | None:
        """The engine; what to wait for while somebody else starts it; None when the caller has to start it now."""
        if self._closed:
            raise Refusal(503, "engine_unavailable", "The server is stopping.", retry_after=5)
        engine = self._engines.get(model.id)
        if engine is not None and engine.state not in ("failed", "stopped"):
            return engine
        if model.id in self._starting:
            return self._starting[model.id][1]
        if self.pressure is not None:
            raise self.pressure
        self.failed.discard(model.id)
        plan = self.plan(model)
        if not plan.fits:
            raise _InUse(_no_room(plan)) if plan.needed <= plan.budget else _no_room(plan)
        self._starting[model.id] = (plan.needed, threading.Event())
        for model_id in plan.evict:
            log.info("engine.evicted", model=model_id, **{"for": model.id})
            self._put_out(self._engines.pop(model_id))
        return None

    def _put_out(self, victim: Engine) -> None:
        """Stop an engine beside us: it may take its whole grace, and nobody else should wait for that."""
        gone = threading.Event()
        self._leaving.append(gone)

        def stop() -> None:
            try:
                victim.stop()
            finally:
                with self._lock:
                    self._leaving.remove(gone)
                gone.set()

        threading.Thread(target=stop, name=f"evict-{victim.model.id}", daemon=True).start()

    def _start(self, model: LocalModel) -> Engine:
        _, started = self._starting[model.id]
        try:
            with self._lock:
                leaving = list(self._leaving)
            for gone in leaving:  # their memory is ours only when they are gone
                gone.wait()
            with self._lock:
                options = self._options(model, self._left(model.id))
            engine = Engine(model, options, self.host, self._flush, self._on_end, self._gated, self.patience)
            with self._lock:
                closed = self._closed
                if not closed:
                    self._engines[model.id] = engine
            if closed:
                engine.stop()
                raise Refusal(503, "engine_unavailable", "The server is stopping.", retry_after=5)
        finally:
            with self._lock:
                self._starting.pop(model.id, None)
            started.set()
        self.share_out()
        return engine

    def _left(self, model_id: str) -> int:
        """Bytes for one engine beside all others, those that are being started included."""
        taken = {other.model.id: self.needs(other.model) for other in self._engines.values()}
        taken |= {starting: needed for starting, (needed, _) in self._starting.items()}
        return self.budget - sum(size for other, size in taken.items() if other != model_id)

    def share_out(self) -> None:
        """Tell every engine what it may use now; models come and go beside it."""
        with self._lock:
            rooms = [(engine, self._left(engine.model.id)) for engine in self._engines.values()]
        for engine, room in rooms:
            engine.set_room(room)

    def needs(self, model: LocalModel) -> int:
        """Bytes a child with this model takes."""
        return declared_bytes(model, self.dtype) + self._beside(model)

    def plan(self, model: LocalModel) -> Plan:
        """What loading would need and whom it would put out, without doing it."""
        with self._lock:
            needed = self.needs(model)
            others = [engine for engine in self._engines.values() if engine.model.id != model.id]
            used = sum(self.needs(engine.model) for engine in others)
            used += sum(size for starting, (size, _) in self._starting.items() if starting != model.id)
            evict: list[str] = []
            left = used
            for engine in sorted(others, key=lambda e: e.last_used):
                if left + needed <= self.budget:
                    break
                if engine.busy or engine.model.id in self._pinned:
                    continue
                evict.append(engine.model.id)
                left -= self.needs(engine.model)
            return Plan(model.id, needed, self.budget, used, tuple(evict), left + needed <= self.budget)

    def pin(self, model_id: str, pinned: bool) -> None:
        with self._lock:
            (self._pinned.add if pinned else self._pinned.discard)(model_id)

    def is_pinned(self, model_id: str) -> bool:
        return model_id in self._pinned

    def unload(self, model_id: str) -> bool:
        """Stop a model's engine; False when it was not loaded.

        Raises:
            Refusal: 409 while it is in use.
        """
        with self._lock:
            engine = self._engines.get(model_id)
            if engine is None:
                return False
            if engine.busy:
                raise Refusal(409, "model_in_use", "The model is answering requests; cancel them or wait.", param="model")
            del self._engines[model_id]
        engine.stop()
        self.share_out()
        return True

    def shrink(self) -> bool:
        """Have every engine give back what nobody would miss at once; False when there is none."""
        engines = self.engines()
        for engine in engines:
            engine.shrink()
        return bool(engines)

    def unload_one(self) -> bool:
        """Unload the model used longest ago of those neither in use nor pinned; False when there is none."""
        for engine in sorted(self.engines(), key=lambda engine: engine.last_used):
            if not engine.busy and engine.model.id not in self._pinned:
                try:
                    return self.unload(engine.model.id)
                except Refusal:
                    continue  # a request came just now
        return False

    def unload_idle(self) -> None:
        """Stop what nobody used for ``idle_seconds`` (0: never)."""
        if not self.idle_seconds:
            return
        limit = time.monotonic() - self.idle_seconds
        for engine in self.engines():
            if engine.last_used < limit and not engine.busy and engine.model.id not in self._pinned:
                log.info("engine.idle_unload", model=engine.model.id)
                try:
                    self.unload(engine.model.id)
                except Refusal:
                    continue  # a request came just now

    def close(self) -> None:
        """Stop everything; nothing can be obtained afterwards."""
        with self._lock:
            self._closed = True
            engines = list(self._engines.values())
            self._engines.clear()
        for engine in engines:
            engine.stop()

    def _on_end(self, engine: Engine) -> None:
        """A failed engine makes room, so that the next request tries again."""
        if engine.state == "failed":
            self.failed.add(engine.model.id)
        # From the engine's own thread with its lock held: never wait for ours here.
        if self._engines.get(engine.model.id) is engine:
            self._engines.pop(engine.model.id, None)


def _no_room(plan: Plan) -> Refusal:
    mib = 1024 * 1024
    if plan.needed > plan.budget:
        return Refusal(
            400,
            "memory_admission",
            f"The model needs {plan.needed // mib} MiB and the memory budget of this host is {plan.budget // mib} MiB.",
            param="model",
        )
    return Refusal(
        503,
        "memory_admission",
        f"The model needs {plan.needed // mib} MiB, {plan.used // mib} of {plan.budget // mib} MiB are used by models in use.",
        param="model",
        retry_after=10,
    )
