"""Hung children, other models' room, and a machine that runs out of memory."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxplatform.inference.contract import Finished, Refusal
from tests.engine.conftest import EMBEDDER, ENDLESS, Host
from tests.system.stack import alive, eventually
from workers.engine.platform import Memory, _linux_memory
from workers.host.pressure import Pressure
from workers.host.watch import Patience, Watch

MakeHost = Callable[..., Host]
MIB = 1024 * 1024


def looks(watch: Watch, *heard: bool, ready: bool = True, in_turn: float = 0.0, age: float = 1.0) -> list[str | None]:
    return [watch.look(heard=one, ready=ready, in_turn=in_turn, age=age) for one in heard]


def test_silence_counts_looks_and_a_word_starts_anew() -> None:
    assert looks(Watch(Patience(silent_looks=3)), False, False, True, False, False, False) == [None] * 5 + ["silent"]


def test_a_child_that_speaks_but_does_not_turn_hangs() -> None:
    assert looks(Watch(Patience(turn_seconds=10)), True, in_turn=9.0) == [None]
    assert looks(Watch(Patience(turn_seconds=10)), True, in_turn=11.0) == ["hangs in one turn"]


def test_loading_may_take_its_time_but_not_for_ever() -> None:
    watch = Watch(Patience(silent_looks=1, load_seconds=60))
    assert looks(watch, False, False, ready=False, age=59.0) == [None, None]
    assert looks(watch, True, ready=False, age=61.0) == ["not ready in time"]


def test_a_stopped_child_is_killed_and_its_answer_goes_on(make_host: MakeHost) -> None:
    host = make_host()
    host.runtime.residency.patience = Patience(silent_looks=2)
    whole = host.ask("What is 2 plus 3?", max_tokens=300, sampling=ENDLESS).text
    running, answer = host.start("What is 2 plus 3?", max_tokens=300, sampling=ENDLESS)
    answer.wait(lambda a: len(a.text) > 5)
    stopped = host.engine().pid
    os.kill(stopped, signal.SIGSTOP)
    assert running.done.wait(60)
    assert isinstance(answer.last, Finished)
    assert answer.text == whole
    assert not alive(stopped)


def test_an_idle_child_is_not_taken_for_a_hung_one(make_host: MakeHost) -> None:
    host = make_host()
    host.runtime.residency.patience = Patience(silent_looks=2)
    host.ask(max_tokens=2)
    engine, heard = host.engine(), []
    child = engine._child
    child._watch.look = lambda **seen: heard.append(seen)
    eventually(lambda: len(heard) >= 4, what="four looks at an idle child")
    assert all(seen["heard"] for seen in heard[1:])
    assert engine.restarts == 0


def test_nobody_waits_for_a_model_that_leaves_memory(make_host: MakeHost) -> None:
    host = make_host(budget=300 * MIB)
    host.ask(max_tokens=2)
    leaving = host.engine().pid
    os.kill(leaving, signal.SIGSTOP)  # it will use up all of its grace
    asked = threading.Thread(target=host.ask, kwargs={"model": EMBEDDER, "kind": "embedding", "messages": [], "inputs": ["x"]})
    asked.start()
    eventually(lambda: host.runtime.residency.get("tiny") is None, what="the eviction")
    assert host.runtime.residency.get(EMBEDDER) is None  # not before the other's memory is free
    host.runtime.look_after()
    assert alive(leaving)
    asked.join(60)
    assert not alive(leaving)


def test_room_is_shared_out_anew_when_models_come_and_go(make_host: MakeHost) -> None:
    host = make_host()
    host.ask(max_tokens=2)
    alone = host.engine().facts["kv_tokens"]
    host.ask(model=EMBEDDER, kind="embedding", messages=[], inputs=["x"])
    shared = eventually(lambda: (tokens := host.engine().facts["kv_tokens"]) < alone and tokens, what="less room")
    host.runtime.residency.unload(EMBEDDER)
    eventually(lambda: host.engine().facts["kv_tokens"] == alone, what="the old room")
    assert 0 < shared < alone


class House:
    """Remembers what was asked of it."""

    def __init__(self, idle_models: int = 1) -> None:
        self.pressure: Refusal | None = None
        self.measures: list[str] = []
        self.idle_models = idle_models

    def shrink(self) -> bool:
        self.measures.append("shrink")
        return True

    def unload_one(self) -> bool:
        if not self.idle_models:
            return False
        self.idle_models -= 1
        self.measures.append("unload")
        return True


def test_measures_come_mildest_first_and_are_lifted_by_themselves() -> None:
    house, free = House(idle_models=2), [100 * MIB]
    pressure = Pressure(house, 0.1, lambda: Memory(1000 * MIB, free[0]))
    pressure.look()
    assert house.measures == []
    free[0] = 50 * MIB
    for _ in range(4):
        pressure.look()
    assert house.measures == ["shrink", "unload", "unload"]
    assert house.pressure is not None
    assert "50 of 1000 MiB" in house.pressure.message
    assert "100 MiB" in house.pressure.message
    free[0] = 110 * MIB  # above the floor, but not far enough to let go
    pressure.look()
    assert house.pressure is not None
    free[0] = 200 * MIB
    pressure.look()
    assert house.pressure is None


def test_a_system_that_says_it_is_short_counts_whatever_is_free() -> None:
    house = House()
    Pressure(house, 0.01, lambda: Memory(1000 * MIB, 500 * MIB, strained=True)).look()
    assert house.measures == ["shrink"]


def test_a_short_machine_refuses_what_is_new_and_spares_what_runs(make_host: MakeHost) -> None:
    host = make_host(memory_floor=0.5)
    memory = [Memory(1000 * MIB, 900 * MIB)]
    host.runtime.pressure._read = lambda: memory[0]
    running, answer = host.start("What is 2 plus 3?", max_tokens=1000, sampling=ENDLESS)
    answer.wait(lambda a: bool(a.text))
    memory[0] = Memory(1000 * MIB, 100 * MIB)
    for _ in range(3):
        host.runtime.look_after()
    with pytest.raises(Refusal) as refused:
        host.start(max_tokens=2)
    assert (refused.value.status, refused.value.code) == (503, "memory_admission")
    assert "100 of 1000 MiB" in refused.value.message
    running.cancel()
    assert running.done.wait(10)
    memory[0] = Memory(1000 * MIB, 900 * MIB)
    host.runtime.look_after()
    assert isinstance(host.ask(max_tokens=2).last, Finished)


def test_the_machines_memory_is_read_with_its_containers_limit(tmp_path: Path) -> None:
    for name, content in {
        "proc/meminfo": "MemTotal: 2048 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\n",
        "proc/pressure/memory": "some avg10=40.00 avg60=0 avg300=0 total=1\nfull avg10=12.50 avg60=0 avg300=0 total=1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert _linux_memory(tmp_path) == Memory(2 * MIB, MIB, strained=True)
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{MIB}\n")
    (group / "memory.current").write_text(f"{MIB // 2}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {MIB // 4}\n")
    assert _linux_memory(tmp_path) == Memory(MIB, MIB * 3 // 4, strained=True)
    assert _linux_memory(tmp_path / "nowhere") is None
