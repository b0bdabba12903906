"""Which host and model answer, as a function of what the hosts say."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.inference import placement
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import choose, looks_like_path, parse_state


def host(name: str = "a", active: int = 0, **models: dict[str, Any]) -> Any:
    entries = [{"id": model.replace("_", "-"), "capabilities": ["chat"], **facts} for model, facts in models.items()]
    return parse_state(name, {"models": entries, "active": active, "slots": 4})


CURRENT = {"current": True}


def test_an_exact_name_is_itself() -> None:
    place = choose((host(big=CURRENT, small={}),), "small", "chat", strict=False)
    assert (place.model.id, place.substituted) == ("small", False)


def test_an_unknown_name_is_answered_by_the_current_model_and_told() -> None:
    place = choose((host(small={}, big=CURRENT),), "gpt-9", "chat", strict=False)
    assert (place.model.id, place.substituted) == ("big", True)


def test_nobody_is_sent_to_a_model_that_cannot_be_loaded() -> None:
    broken = {"obstacle": "its architecture unheard_of is not known here"}
    assert choose((host(broken=broken, small={}),), "gpt-9", "chat", strict=False).model.id == "small"
    assert choose((host("a", 0, m=broken), host("b", 3, m={})), "m", "chat", strict=False).host.name == "b"
    assert choose((host(broken=broken),), "broken", "chat", strict=False).model.id == "broken", "whoever names it is told why"


def test_no_name_is_no_substitution() -> None:
    assert not choose((host(big=CURRENT),), None, "chat", strict=False).substituted


def test_strict_callers_get_404() -> None:
    with pytest.raises(Refusal) as refusal:
        choose((host(big=CURRENT),), "gpt-9", "chat", strict=True)
    assert (refusal.value.status, refusal.value.code) == (404, "model_not_found")


def test_no_host_is_503_with_a_time() -> None:
    with pytest.raises(Refusal) as refusal:
        choose((), "big", "chat", strict=False)
    assert refusal.value.status == 503
    assert refusal.value.retry_after


@pytest.mark.django_db(transaction=True)
async def test_a_broker_that_hangs_is_as_good_as_one_that_is_down(broker: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "BROKER_SECONDS", 0.1)
    placement.forget()
    broker.execute_command("CLIENT", "PAUSE", 2_000, "ALL")  # nothing takes it back: that would wait as well
    with pytest.raises(BROKER_ERRORS):
        await placement.live_hosts()


def test_a_model_of_another_kind_is_400() -> None:
    embedding = {"capabilities": ["embedding"], "kind": "embedding"}
    with pytest.raises(Refusal) as refusal:
        choose((host(vec=embedding, big=CURRENT),), "vec", "chat", strict=False)
    assert refusal.value.status == 400
    assert choose((host(vec=embedding, big=CURRENT),), "text-embedding-3", "embedding", strict=False).model.id == "vec"


def test_resident_and_idle_hosts_come_first() -> None:
    resident = {"resident": True}
    assert choose((host("a", 0, m={}), host("b", 3, m=resident)), "m", "chat", strict=False).host.name == "b"
    assert choose((host("a", 2, m=resident), host("b", 1, m=resident)), "m", "chat", strict=False).host.name == "b"


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc", "./x", "~", "~/x", "a/../b", "file:///x", "http://x", "C:\\x", "a\\b", "a\x00b", "a\nb", "x" * 300, "a//b"],
)
def test_names_that_are_paths(name: str) -> None:
    assert looks_like_path(name)


@pytest.mark.parametrize("name", ["org/model", "model-1.5:4bit", "ft:base:local:x:1", "gpt-4o", ""])
def test_names_that_are_names(name: str) -> None:
    assert not looks_like_path(name)
