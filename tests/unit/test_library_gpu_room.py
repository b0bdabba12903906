"""Room for a trainer: idle models go, busy and pinned ones stay, and the job says what it waits for."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from mlxplatform.inference.contract import Refusal
from workers.host import runtime as host
from workers.tasks import gpu_room


@dataclass
class Model:
    id: str
    bytes: int = 100
    parameters: int = 25


@dataclass
class Engine:
    """Stands where an engine child would; the room only reads these."""

    model: Model
    busy: bool = False
    last_used: float = 0.0


@dataclass
class Residency:
    budget: int
    loaded: list[Engine]
    pinned: set[str] = field(default_factory=set)
    dtype: str = "native"

    def engines(self) -> list[Engine]:
        return list(self.loaded)

    def is_pinned(self, model_id: str) -> bool:
        return model_id in self.pinned

    def unload(self, model_id: str) -> bool:
        engine = next(engine for engine in self.loaded if engine.model.id == model_id)
        if engine.busy:
            raise Refusal(409, "model_in_use", "busy")
        self.loaded.remove(engine)
        return True


class Context:
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


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(gpu_room, "declared_bytes", lambda model, dtype: model.bytes)

    def make(residency: Residency) -> None:
        runtime = type("Runtime", (), {"residency": residency})()
        monkeypatch.setattr(host, "_runtime", runtime)

    return make


def test_the_longest_idle_model_goes_first_and_only_as_many_as_needed(room: Any) -> None:
    residency = Residency(
        300, [Engine(Model("new"), last_used=3), Engine(Model("old"), last_used=1), Engine(Model("mid"), last_used=2)]
    )
    room(residency)

    gpu_room.make_room(Context(), 100)  # type: ignore[arg-type]

    assert [engine.model.id for engine in residency.loaded] == ["new", "mid"]


def test_busy_and_pinned_models_stay_and_are_waited_for(room: Any) -> None:
    busy = Engine(Model("busy"), busy=True)
    residency = Residency(200, [busy, Engine(Model("pinned"))], {"pinned"})
    room(residency)
    context = Context()
    thread = threading.Thread(target=gpu_room.make_room, args=(context, 100 << 20))
    residency.budget = (100 << 20) + 150
    thread.start()
    assert context.waiting.wait(10)
    assert len(residency.loaded) == 2

    busy.busy = False
    thread.join(10)

    assert [engine.model.id for engine in residency.loaded] == ["pinned"]
    assert context.said[0].startswith("Waiting for 0 MiB") and context.said[-1] == "Unloaded busy to make room."


def test_a_process_without_engines_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_runtime", None)

    gpu_room.make_room(Context(), 1 << 60)  # type: ignore[arg-type]
