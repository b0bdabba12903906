"""The wake broker on a real Valkey: idle consumers start at once, nothing is lost with a token."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import dramatiq
import pytest
import redis
from dramatiq.worker import Worker

from mlxplatform.broker import dramatiq_broker
from mlxplatform.broker.wake import WakeBroker, wake_key

QUEUE = "wake_test"


@pytest.fixture
def wake_broker(broker: redis.Redis) -> Iterator[WakeBroker]:
    made = dramatiq_broker.make_broker()
    made.declare_queue(QUEUE)
    yield made
    made.close()


def message(number: int) -> dramatiq.Message[None]:
    return dramatiq.Message(queue_name=QUEUE, actor_name="note", args=(number,), kwargs={}, options={})


def test_a_sleeping_consumer_wakes_for_a_message(wake_broker: WakeBroker) -> None:
    consumer = wake_broker.consume(QUEUE, prefetch=1, timeout=20_000)
    found: list[int] = []

    def take() -> None:
        while not found:
            item = next(consumer)
            if item is not None:
                found.append(item.args[0])
                consumer.ack(item)

    thread = threading.Thread(target=take)
    thread.start()
    time.sleep(0.1)  # not a race: a message that comes before the wait is found by the first look
    wake_broker.enqueue(message(7))
    thread.join(10)  # far below the consumer's own timeout of 20 s
    assert found == [7]


def test_a_lost_token_costs_a_look_and_nothing_else(wake_broker: WakeBroker, broker: redis.Redis) -> None:
    wake_broker.enqueue(message(1))
    broker.delete(wake_key(wake_broker.namespace, QUEUE))
    consumer = wake_broker.consume(QUEUE, prefetch=1, timeout=50)
    item = next(consumer)
    assert item is not None and item.args[0] == 1


def test_tokens_do_not_pile_up(wake_broker: WakeBroker, broker: redis.Redis) -> None:
    for number in range(100):
        wake_broker.enqueue(message(number))
    assert broker.llen(wake_key(wake_broker.namespace, QUEUE)) == 64


def test_prefetch_bounds_what_is_held(wake_broker: WakeBroker) -> None:
    for number in range(3):
        wake_broker.enqueue(message(number))
    consumer = wake_broker.consume(QUEUE, prefetch=2, timeout=10)
    held = [next(consumer), next(consumer)]
    assert next(consumer) is None
    consumer.ack(held[0])
    third = next(consumer)
    assert third is not None and third.args[0] == 2


def test_a_broker_that_forgot_its_scripts_still_takes_messages(wake_broker: WakeBroker, broker: redis.Redis) -> None:
    wake_broker.enqueue(message(1))
    broker.script_flush()
    wake_broker.enqueue(message(2))
    consumer = wake_broker.consume(QUEUE, prefetch=5, timeout=10)
    assert [item.args[0] for item in (next(consumer), next(consumer)) if item is not None] == [1, 2]
    assert next(consumer) is None, "neither is there twice"


def test_what_a_message_speaks_of_is_there_before_it(wake_broker: WakeBroker, broker: redis.Redis) -> None:
    broker.set("full", "text")
    with pytest.raises(redis.ResponseError):
        wake_broker.enqueue(message(1), first=lambda pipe: pipe.rpush("full", "refused, for it is no list"))
    wake_broker.enqueue(message(2), first=lambda pipe: pipe.set("spoken of", "2"))
    assert broker.get("spoken of") == b"2"


def test_a_consumer_that_found_nothing_does_not_look_twice(wake_broker: WakeBroker, broker: redis.Redis) -> None:
    consumer = wake_broker.consume(QUEUE, prefetch=5, timeout=10)
    assert next(consumer) is None
    looks = _scripts_run(broker)
    wake_broker.enqueue(message(1))
    item = next(consumer)
    assert item is not None and item.args[0] == 1
    assert _scripts_run(broker) - looks == 2, "one to put the message there, one to take it"


def _scripts_run(broker: redis.Redis) -> int:
    return int(broker.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def test_a_failing_actor_is_not_run_again(wake_broker: WakeBroker) -> None:
    runs: list[int] = []
    done = threading.Event()

    @dramatiq.actor(broker=wake_broker, queue_name=QUEUE, actor_name="note")
    def note(number: int) -> None:
        runs.append(number)
        if number == 1:
            raise ValueError("as told")
        done.set()

    worker = Worker(wake_broker, worker_threads=1, queues={QUEUE}, worker_timeout=100)
    worker.start()
    wake_broker.enqueue(message(1))
    wake_broker.enqueue(message(2))
    assert done.wait(20)
    worker.stop()
    assert runs == [1, 2]


def test_enqueueing_by_name(broker: redis.Redis) -> None:
    dramatiq_broker.enqueue("named", "somebody", 1, "two")
    consumer = dramatiq_broker.get_broker().consume("named", prefetch=1, timeout=10)
    item = next(consumer)
    assert item is not None
    assert (item.actor_name, item.args) == ("somebody", (1, "two"))
