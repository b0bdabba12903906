"""The GPU lease on a real Valkey: a model-checked script, and the Python side's threads."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from mlxplatform.broker import lease as module
from mlxplatform.broker.lease import RANKS, Lease, LeaseLost, LeaseTooLarge, Policy, is_current, key, look, reside
from tests.fixtures.job_processes import wait_for

HOST = "h"
BUDGET = 100
#: No settling and no patience within a test's time.
PLAIN = Policy(settle_s=0, patience_s=1000, slice_s=1000)
BOUNDED = Policy(budget=BUDGET, settle_s=0, patience_s=1000, slice_s=1000)

TOKENS = st.sampled_from([f"t{n}" for n in range(6)])


class LeaseMachine(RuleBasedStateMachine):
    """Random calls by six children. The expected order is kept beside, in plain Python."""

    client: redis.Redis

    @initialize()
    def start(self) -> None:
        self.client.flushall()
        self.last_fence = 0
        self.holding: dict[str, dict[str, Any]] = {}
        self.queue: list[tuple[int, int, str, dict[str, Any]]] = []
        self.ticket = 0

    def call(self, op: str, token: str, record: dict[str, Any] | None = None) -> list[int]:
        return module._call(self.client, HOST, op, token, 60, json.dumps(record or {"fence": 0}), BOUNDED)

    def expected_grants(self) -> None:
        while self.queue:
            self.queue.sort(key=lambda entry: entry[:2])
            _, _, token, record = self.queue[0]
            alone = not self.holding or (record["mode"] == "shared" and all(h["mode"] == "shared" for h in self.holding.values()))
            fits = sum(h["bytes"] for h in self.holding.values()) + record["bytes"] <= BUDGET
            if not (alone and fits):
                return
            self.queue.pop(0)
            self.holding[token] = record

    def knows(self, token: str) -> bool:
        return token in self.holding or any(entry[2] == token for entry in self.queue)

    def forget(self, token: str) -> None:
        self.holding.pop(token, None)
        self.queue = [entry for entry in self.queue if entry[2] != token]
        self.expected_grants()

    @rule(
        token=TOKENS, mode=st.sampled_from(["shared", "exclusive"]), cls=st.sampled_from(sorted(RANKS)), size=st.integers(0, 120)
    )
    def acquire(self, token: str, mode: str, cls: str, size: int) -> None:
        record = {"mode": mode, "class": cls, "rank": RANKS[cls], "reason": "", "bytes": size, "job": ""}
        fresh = not self.knows(token)
        fence = self.call("acquire", token, record)[0]
        if fresh and size > BUDGET:
            assert fence == -1
            return
        if fresh:
            self.ticket += 1
            self.queue.append((RANKS[cls], self.ticket, token, record))
            self.expected_grants()
        assert (fence > 0) == (token in self.holding)

    @rule(token=TOKENS)
    def release(self, token: str) -> None:
        self.call("release", token)
        self.forget(token)

    @rule(token=TOKENS)
    def renew(self, token: str) -> None:
        if token in self.holding:
            fence = int(json.loads(self.client.hget(f"{key(HOST)}:records", token))["fence"])
            assert self.call("renew", token, {"fence": fence})[0] == fence

    @rule(token=TOKENS)
    def fall_silent(self, token: str) -> None:
        if self.knows(token):
            self.client.zadd(f"{key(HOST)}:expiry", {token: 1})
            look(self.client, HOST, BOUNDED)
            self.forget(token)

    @rule(token=TOKENS, old=st.integers(1, 10**6))
    def a_late_holder_renews(self, token: str, old: int) -> None:
        """Numbers from before never come back while anybody was granted since."""
        if not self.knows(token) and self.last_fence:
            stale = {"mode": "exclusive", "class": "trainer", "rank": 1, "reason": "", "bytes": 0, "job": "", "fence": old}
            assert self.call("renew", token, stale)[0] == 0

    @invariant()
    def script_and_model_agree(self) -> None:
        if not hasattr(self, "holding"):
            return
        seen = look(self.client, HOST, BOUNDED)
        assert {one["token"] for one in seen["holders"]} == set(self.holding)
        assert [one["token"] for one in seen["waiters"]] == [entry[2] for entry in sorted(self.queue, key=lambda e: e[:2])]
        modes = [one["mode"] for one in seen["holders"]]
        assert len(modes) <= 1 or set(modes) == {"shared"}
        assert seen["used"] <= BUDGET
        fences = [one["fence"] for one in seen["holders"]]
        assert len(set(fences)) == len(fences)
        newest = int(self.client.get(f"{key(HOST)}:fence") or 0)
        assert newest >= self.last_fence
        assert all(is_current(self.client, HOST, int(fence)) for fence in fences)
        self.last_fence = newest


def test_the_script_agrees_with_a_plain_model(broker: redis.Redis) -> None:
    LeaseMachine.client = broker
    run_state_machine_as_test(
        LeaseMachine,
        settings=settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)),
    )


def make(client: redis.Redis, cls: str = "interactive", mode: str = "shared", policy: Policy = PLAIN, **options: Any) -> Lease:
    return Lease(client, HOST, mode=mode, cls=cls, policy=policy, **options)  # type: ignore[arg-type]


def test_a_trainer_yields_to_chat_and_gets_it_back(broker: redis.Redis) -> None:
    trainer, engine = make(broker, "trainer", "exclusive"), make(broker)
    trainer.acquire()
    first = trainer.fence
    assert not trainer.wanted
    chat = threading.Thread(target=engine.acquire)
    chat.start()
    wait_for(lambda: trainer.wanted, "the trainer to hear of the chat")
    trainer.release()
    chat.join()
    assert engine.held
    again = threading.Thread(target=trainer.acquire)
    again.start()
    wait_for(lambda: look(broker, HOST)["waiters"], "the trainer to queue")
    assert not engine.wanted
    engine.release()
    again.join()
    assert trainer.fence > engine.fence >= 0
    assert trainer.fence > first
    trainer.release()


def test_equal_classes_alternate_by_slices_and_patience_lifts_a_class(broker: redis.Redis) -> None:
    short = Policy(settle_s=0, slice_s=0.05, patience_s=1000)
    rows, trainer = make(broker, "rows", "shared", short), make(broker, "trainer", "exclusive", short)
    rows.acquire()
    assert not trainer.acquire(timeout=0)
    waiting = threading.Thread(target=trainer.acquire)
    waiting.start()
    wait_for(lambda: rows.wanted, "the slice to end")
    rows.release()
    waiting.join()
    trainer.release()

    patient = Policy(settle_s=0, slice_s=1000, patience_s=0.05)
    engine, trainer = make(broker, policy=patient), make(broker, "trainer", "exclusive", patient)
    engine.acquire()
    waiting = threading.Thread(target=trainer.acquire)
    waiting.start()
    wait_for(lambda: engine.wanted, "patience to end")
    late = make(broker, policy=patient)
    assert not late.acquire(timeout=0), "a chat that came later must not overtake"
    engine.release()
    waiting.join()
    trainer.release()


def test_a_silent_holder_loses_it_notices_and_hurts_nobody(broker: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = threading.Event()
    stale = make(broker, "trainer", "exclusive", ttl=2.0, on_lost=lost.set)
    stale.acquire()
    old = stale.fence
    broker.zadd(f"{key(HOST)}:expiry", {stale.token: 1})
    fresh = make(broker, "trainer", "exclusive")
    fresh.acquire()
    assert lost.wait(20)
    with pytest.raises(LeaseLost):
        stale.check()
    stale.release()
    assert fresh.held
    assert is_current(broker, HOST, fresh.fence)
    assert not is_current(broker, HOST, old)
    fresh.release()


def test_the_deadline_stops_a_holder_that_was_frozen(broker: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    held = make(broker, "trainer", "exclusive")
    held.acquire()
    held.check()
    later = time.monotonic() + 60
    monkeypatch.setattr("mlxplatform.broker.lease.time.monotonic", lambda: later)
    with pytest.raises(LeaseLost):
        held.check()
    held.release()


def test_a_wiped_broker_gives_the_lease_back_to_its_holder(broker: redis.Redis) -> None:
    policy = Policy(settle_s=30)
    holder = make(broker, "trainer", "exclusive")
    holder.acquire()
    fence = holder.fence
    broker.flushall()
    other = make(broker, "trainer", "exclusive", policy)
    assert not other.acquire(timeout=0.05), "nobody new is let in before holders had their chance"
    wait_for(lambda: is_current(broker, HOST, fence), "the holder to come back")
    assert holder.held
    other.release()
    holder.release()
    after = make(broker)
    after.acquire()
    assert after.fence > fence
    after.release()


def test_numbers_grow_even_after_a_wipe(broker: redis.Redis) -> None:
    first = make(broker)
    first.acquire()
    fence = first.fence
    first.release()
    broker.flushall()
    second = make(broker)
    second.acquire()
    assert second.fence > fence
    second.release()


def test_declared_bytes_bound_what_is_let_in(broker: redis.Redis) -> None:
    reside(broker, HOST, "model", 60, BOUNDED)
    with pytest.raises(LeaseTooLarge):
        make(broker, policy=BOUNDED, size=BUDGET + 1).acquire()
    big = make(broker, "trainer", "exclusive", BOUNDED, size=50, reason="finetune")
    assert not big.acquire(timeout=0)
    waiting = threading.Thread(target=big.acquire)
    waiting.start()
    seen = wait_for(lambda: look(broker, HOST, BOUNDED)["waiters"], "the trainer to queue")
    assert (seen[0]["lacking"], seen[0]["reason"]) == (10, "finetune")
    reside(broker, HOST, "model", 0, BOUNDED)
    waiting.join()
    assert big.held
    big.release()


def test_a_look_from_elsewhere_lets_nobody_in_beyond_the_budget(broker: redis.Redis) -> None:
    holder, waiter = (make(broker, policy=BOUNDED, size=60) for _ in range(2))
    holder.acquire()
    assert not waiter.acquire(timeout=0)
    waiting = threading.Thread(target=waiter.acquire)
    waiting.start()
    wait_for(lambda: look(broker, HOST)["waiters"], "the second engine to queue")
    seen = look(broker, HOST)
    assert (len(seen["holders"]), seen["waiters"][0]["lacking"], seen["budget"]) == (1, 20, BUDGET)
    holder.release()
    waiting.join()
    waiter.release()


def test_history_tells_who_had_it(broker: redis.Redis) -> None:
    with make(broker, "trainer", "exclusive", job="job_1", reason="quantize"):
        pass
    happenings = [(one["what"], one["job"], one["reason"]) for one in look(broker, HOST)["history"]]
    assert happenings == [("released", "job_1", "quantize"), ("granted", "job_1", "quantize")]


def test_a_place_in_the_queue_outlives_a_timeout(broker: redis.Redis) -> None:
    holder, first, second = (make(broker, mode="exclusive") for _ in range(3))
    holder.acquire()
    for waiter in (first, second, first, second, first):
        assert not waiter.acquire(timeout=0)
    assert [one["token"] for one in look(broker, HOST)["waiters"]] == [first.token, second.token]
    first.release()
    holder.release()
    second.acquire()
    second.release()


def test_cancelling_a_wait_leaves_the_queue(broker: redis.Redis) -> None:
    holder, waiter = make(broker, mode="exclusive"), make(broker, mode="exclusive")
    holder.acquire()
    assert not waiter.acquire(cancelled=lambda: True)
    assert look(broker, HOST)["waiters"] == []
    holder.release()
