"""The engine's GPU lease, on the real broker: held while working, given up for others, told to who waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from mlxplatform.broker.lease import Lease, Policy, look
from mlxplatform.inference.contract import Finished, Waiting
from tests.engine.conftest import ENDLESS, Host
from tests.system.stack import eventually
from workers.host.gpu_lease import keepers

POLICY = Policy(settle_s=0, slice_s=0.1)


@pytest.fixture
def leased(models_home: Path, broker: redis.Redis) -> Iterator[Host]:
    host = Host(models_home, gated=keepers(broker, "test", POLICY))
    yield host
    host.runtime.close()


def trainer(broker: redis.Redis) -> Lease:
    return Lease(broker, "test", mode="exclusive", cls="trainer", reason="fine-tune", policy=POLICY)


def holders(broker: redis.Redis) -> list[str]:
    return [holder["class"] for holder in look(broker, "test", POLICY)["holders"]]


def test_the_lease_is_held_while_a_sequence_runs_and_released_after(leased: Host, broker: redis.Redis) -> None:
    running, answer = leased.start(max_tokens=1500, sampling=ENDLESS)
    answer.wait(lambda a: bool(a.text))
    assert holders(broker) == ["interactive"]
    assert look(broker, "test", POLICY)["resident"]
    running.cancel()
    assert running.done.wait(10)
    eventually(lambda: not holders(broker), what="the release of the lease")


def test_a_request_waits_for_a_trainer_and_is_told_so(leased: Host, broker: redis.Redis) -> None:
    leased.ask(max_tokens=2)
    eventually(lambda: not holders(broker), what="the release of the lease")
    training = trainer(broker)
    assert training.acquire(timeout=10)
    running, answer = leased.start(max_tokens=4)
    answer.wait(lambda a: any(isinstance(event, Waiting) and event.reason == "lease" for event in a.events))
    eventually(lambda: training.wanted, what="the wish that the trainer makes room")
    assert not answer.text
    training.release()
    assert running.done.wait(20)
    assert isinstance(answer.last, Finished)


def test_rows_make_room_for_a_trainer_and_finish_after_it(leased: Host, broker: redis.Redis) -> None:
    running, answer = leased.start(max_tokens=1900, priority="row", sampling=ENDLESS)
    answer.wait(lambda a: bool(a.text))
    training = trainer(broker)
    assert training.acquire(timeout=30)
    seen = len(answer.text)
    assert holders(broker) == ["trainer"]
    training.release()
    answer.wait(lambda a: len(a.text) > seen)
    running.cancel()
    assert running.done.wait(10)
