"""A job that made a model ends when the model can be asked for, and not much later when nobody offers it."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
import redis
from django.conf import settings

from mlxplatform.broker import queues
from mlxplatform.inference import placement
from mlxplatform.jobs.context import JobCancelled, JobContext
from mlxplatform.jobs.models import Job
from mlxplatform.library import announced

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ctx() -> JobContext:
    return JobContext(Job.objects.create(kind="quantize", queue="q"))


@pytest.fixture
def say(broker: redis.Redis) -> Any:
    def offer(*models: str) -> None:
        entries = [{"id": model, "capabilities": ["chat"]} for model in models]
        broker.set(queues.host_key(settings.ENV.host_id), json.dumps({"models": entries}))

    yield offer
    broker.delete(queues.host_key(settings.ENV.host_id))


def test_it_waits_until_a_host_offers_the_model(ctx: JobContext, say: Any) -> None:
    say("base")
    waiting = threading.Thread(target=announced.wait_until_known, args=(ctx, "base-8bit"))
    waiting.start()
    waiting.join(0.4)
    assert waiting.is_alive()

    say("base", "base-8bit")
    waiting.join(announced.PATIENCE)

    assert not waiting.is_alive()
    assert "base-8bit" in placement.models_of_hosts()[settings.ENV.host_id]


@pytest.mark.parametrize("others", [None, ("base",)], ids=["no host", "a host that never says so"])
def test_it_ends_where_nobody_will_offer_it(
    ctx: JobContext, say: Any, others: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(announced, "PATIENCE", 0.3)
    monkeypatch.setattr(announced, "models_of_hosts", lambda: looks.append(time.monotonic()) or placement.models_of_hosts())
    if others:
        say(*others)

    announced.wait_until_known(ctx, "base-8bit")

    assert (len(looks) == 1) == (others is None)


def test_a_wish_to_stop_does_not_undo_what_is_published(ctx: JobContext, say: Any) -> None:
    say("base")
    ctx.stop(JobCancelled)
    announced.wait_until_known(ctx, "base-8bit")
