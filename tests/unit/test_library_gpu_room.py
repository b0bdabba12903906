"""Room for a trainer: idle models go, busy and pinned ones stay, and the job says what it waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mlxplatform.inference.contract import Refusal
from workers.host import residency
from workers.host import runtime as host
from workers.host.residency import Residency
from workers.tasks import gpu_room


@dataclass
class Model:
    id: str
    bytes: int = 100
    parameters: int = 25
    obstacle: str = ""


@dataclass
class Engine:
    """Stands where an engine child would; residency reads these and stops it."""

    model: Model
    busy: bool = False
    last_used: float = 0.0
    state: str = "ready"

    def stop(self) -> None:
        self.state = "stopped"

    def set_room(self, size: int) -> None:
        """Engines are told what they may use; nothing to do for one that is not there."""


class Context:
    job_id = "job_1"

    def __init__(self) -> None:
        self.said: list[str] = []
        self.waiting = threading.Event()

    def check(self) -> None:
        """Never stopped here."""

    def log(self, line: str) -> None:
        self.said.append(line)

    def stage(self, name: str, message: str = "", **_: Any) -> None:
        self.said.append(message)
        self.waiting.set()

    def wait(self, seconds: float) -> None:
        time.sleep(0.001)


Make = Callable[..., Residency]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """A host's residency with these engines; a model's bytes are what it says."""
    monkeypatch.setattr(residency, "declared_bytes", lambda model, dtype: model.bytes)

    def made(budget: int, *engines: Engine, pinned: str = "") -> Residency:
        held = Residency("h", budget, lambda model, left: {}, lambda: None)
        held._engines = {engine.model.id: engine for engine in engines}  # type: ignore[misc]
        if pinned:
            held.pin_only([pinned])
        monkeypatch.setattr(host, "_runtime", type("Runtime", (), {"residency": held})())
        return held

    return made


def ids(held: Residency) -> list[str]:
    return [engine.model.id for engine in held.engines()]


def test_the_longest_idle_model_goes_first_and_only_as_many_as_needed(make: Make) -> None:
    held = make(300, Engine(Model("new"), last_used=3), Engine(Model("old"), last_used=1), Engine(Model("mid"), last_used=2))

    with gpu_room.room(Context(), 100, yields=False):  # type: ignore[arg-type]
        assert ids(held) == ["new", "mid"]
        assert held.used() == 300

    assert held.used() == 200


def test_busy_and_pinned_models_stay_and_are_waited_for(make: Make) -> None:
    busy = Engine(Model("busy"), busy=True)
    held = make((100 << 20) + 150, busy, Engine(Model("pinned")), pinned="pinned")
    context = Context()

    def work() -> None:
        with gpu_room.room(context, 100 << 20, yields=False):  # type: ignore[arg-type]
            assert ids(held) == ["pinned"]

    thread = threading.Thread(target=work)
    thread.start()
    assert context.waiting.wait(10)
    assert len(held.engines()) == 2

    busy.busy = False
    thread.join(10)

    assert ids(held) == ["pinned"]
    assert context.said[0].startswith("Waiting for 0 MiB") and context.said[-1] == "Unloaded busy to make room."


def test_a_process_without_engines_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_runtime", None)

    with gpu_room.room(Context(), 1 << 60, yields=True) as wanted:  # type: ignore[arg-type]
        assert not wanted.is_set()


@pytest.mark.parametrize("yields", [True, False])
def test_no_model_is_loaded_into_a_trainers_memory_and_one_that_can_leave_is_asked_to(make: Make, yields: bool) -> None:
    held = make(500)

    with gpu_room.room(Context(), 450, yields=yields) as wanted, pytest.raises(Refusal) as refused:  # type: ignore[arg-type]
        held.obtain(Model("chat"))  # type: ignore[arg-type]

    assert (refused.value.status, refused.value.code) == (503, "gpu_busy")
    assert "job_1" in refused.value.message
    assert wanted.is_set() == yields
    assert refused.value.retry_after == (residency.LEAVING_RETRY if yields else residency.STAYING_RETRY)
    assert held.used() == 0


def test_a_trainer_is_not_sent_away_for_a_model_that_would_not_fit_anyway(make: Make) -> None:
    held = make(500, Engine(Model("busy", 400), busy=True))

    with gpu_room.room(Context(), 50, yields=True) as wanted, pytest.raises(Refusal):  # type: ignore[arg-type]
        held.obtain(Model("chat", 200))  # type: ignore[arg-type]

    assert not wanted.is_set()


def test_a_trainer_that_left_comes_back_when_nobody_asks_any_more(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_room, "QUIET", 0.05)
    engine = Engine(Model("chat"), busy=True)
    make(500, engine)
    context = Context()
    looks: list[bool] = []

    def stop_being_busy(seconds: float) -> None:
        looks.append(engine.busy)
        engine.busy = False
        time.sleep(0.01)

    monkeypatch.setattr(context, "wait", stop_being_busy)

    gpu_room.wait_for_quiet(context)  # type: ignore[arg-type]

    assert looks[0] and len(looks) > 1
