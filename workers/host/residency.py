"""Which models are in memory on this host: load on demand, least recently used out, never one in use.

One engine child per model. The bytes declared are the weights as this machine holds them; the budget is the
machine's. Reading about a model never loads it; only a request or a person does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

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

#: Seconds after which it is worth asking again: a model in use, a trainer that saves and leaves, one that cannot.
IN_USE_RETRY, LEAVING_RETRY, STAYING_RETRY = 10, 5, 60


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
    #: Bytes of ``used`` that trainers have, and whether giving them up would be enough.
    reserved: int = 0
    fits_without: bool = False


@dataclass
class Reservation:
    """Memory a trainer has beside the engines. ``wanted`` is set when a chat needs it; ``yields`` says whether it can go."""

    job: str
    size: int
    yields: bool
    wanted: threading.Event = field(default_factory=threading.Event)


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
        self._reservations: list[Reservation] = []
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
            Refusal: 503 while stopping or while everything resident is in use, 400 when it can never fit, 502 when it is
                known that it cannot be loaded.
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
        if model.obstacle:  # before anything is put out for it
            raise Refusal(502, "model_load_failed", f"The model {model.id} cannot be used: {model.obstacle}.", param="model")
        if self.pressure is not None:
            raise self.pressure
        self.failed.discard(model.id)
        plan = self.plan(model)
        if not plan.fits:
            raise _InUse(self._no_room(plan)) if plan.needed <= plan.budget else self._no_room(plan)
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
        """Bytes for one engine beside all others, those that are being started and trainers included."""
        taken = {other.model.id: self.needs(other.model) for other in self._engines.values()}
        taken |= {starting: needed for starting, (needed, _) in self._starting.items()}
        reserved = sum(reservation.size for reservation in self._reservations)
        return self.budget - reserved - sum(size for other, size in taken.items() if other != model_id)

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
            reserved = sum(reservation.size for reservation in self._reservations)
            used = sum(self.needs(engine.model) for engine in others) + reserved
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
            fits, without = left + needed <= self.budget, left + needed - reserved <= self.budget
            return Plan(model.id, needed, self.budget, used, tuple(evict), fits, reserved, without)

    def used(self) -> int:
        """Bytes that engines, those being started, and trainers have."""
        with self._lock:
            return self.budget - self._left("")

    def reserve(self, job: str, size: int, *, yields: bool) -> Reservation | int:
        """Set memory aside for a trainer, or answer the bytes that are missing."""
        with self._lock:
            missing = self.used() + size - self.budget
            if missing > 0:
                return missing
            reservation = Reservation(job, size, yields)
            self._reservations.append(reservation)
        self.share_out()
        return reservation

    def give_back(self, reservation: Reservation) -> None:
        with self._lock:
            self._reservations = [other for other in self._reservations if other is not reservation]
        self.share_out()

    def pin_only(self, model_ids: Iterable[str]) -> None:
        """Replace what is pinned: these models never leave memory by themselves."""
        with self._lock:
            self._pinned = set(model_ids)

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

    def _no_room(self, plan: Plan) -> Refusal:
        """Why a model cannot be loaded; a trainer in the way is asked to leave where it can."""
        if plan.needed > plan.budget:
            message = f"The model needs {_mib(plan.needed)} MiB and the memory budget of this host is {_mib(plan.budget)} MiB."
            return Refusal(400, "memory_admission", message, param="model")
        message = f"The model needs {_mib(plan.needed)} MiB, {_mib(plan.used)} of {_mib(plan.budget)} MiB are used"
        if not plan.reserved:
            return Refusal(503, "memory_admission", f"{message} by models in use.", param="model", retry_after=IN_USE_RETRY)
        jobs = ", ".join(reservation.job for reservation in self._reservations)
        leaving = plan.fits_without and all(reservation.yields for reservation in self._reservations)
        if leaving:
            for reservation in self._reservations:
                reservation.wanted.set()
        what = "which makes room now; try again shortly" if leaving else "which has to end first"
        retry = LEAVING_RETRY if leaving else STAYING_RETRY
        return Refusal(503, "gpu_busy", f"{message}, {_mib(plan.reserved)} by {jobs}, {what}.", param="model", retry_after=retry)


def _mib(size: int) -> int:
    return size >> 20
