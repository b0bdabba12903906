"""Choosing the host and the model of a request from what the hosts say of themselves.

Each gpu process publishes its live state once a second under a key that expires with its heartbeat; a host without
a key does not exist for placement. Resolving a name follows one rule: an exact id of a model of the right kind is
itself; what looks like a path or URL is 404; any other unknown name gets the current model of that kind and is told
so, unless the caller is strict (batch lines, jobs), the name is a fine-tuned one (``ft:…``), or the operator chose
``MLXPLATFORM_UNKNOWN_MODEL=refuse``.
Nothing here touches a file system, so no name a client sends can reach one.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections

from mlxplatform.broker import queues
from mlxplatform.broker.connections import async_client, sync_client
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.models import Host
from mlxplatform.once import Once

#: Seconds a read of the hosts' live state is reused: one Redis read serves a burst of requests.
STATE_AGE = 0.25
#: Seconds the list of host names is reused; hosts appear rarely.
NAMES_AGE = 5.0
#: Seconds the broker has to answer.
BROKER_SECONDS = 2.0
#: Names of what was fine-tuned here. They stand for exactly one model, so nothing else ever answers for them.
TRAINED_PREFIX = "ft:"
#: Longest model name looked at.
MAX_NAME = 256
#: Seconds a client should wait for a host that is gone to come back; about one engine start.
HOST_RETRY_AFTER = 5

_PATH_LIKE = re.compile(r"^[./~\\]|\.\.|://|^file:|[\\\x00-\x1f\x7f]|^[A-Za-z]:[\\/]|//")


@dataclass(frozen=True)
class ServedModel:
    """One model of one host, as published by it. ``entry`` is everything it said."""

    id: str
    kind: str
    capabilities: frozenset[str]
    context: int | None
    resident: bool
    current: bool
    entry: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def usable(self) -> bool:
        """Whether its host knows nothing that keeps it from being loaded there."""
        return not self.entry.get("obstacle")

    def visible_to(self, project: str | None) -> bool:
        """Models are everybody's; a fine-tuned name is its project's. None is whoever sees everything."""
        return project is None or self.entry.get("project", "") in ("", project)


@dataclass(frozen=True)
class HostState:
    """A live host. ``instance`` changes when its gpu process is a new one."""

    name: str
    instance: str
    engine_state: str
    models: tuple[ServedModel, ...]
    slots: int
    active: int
    waiting: int
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Place:
    """Where a request goes. ``substituted`` says that the asked name was unknown and ``model`` answers for it."""

    host: HostState
    model: ServedModel
    substituted: bool = False


class _Cache:
    def __init__(self) -> None:
        self.names: tuple[float, tuple[str, ...]] = (0.0, ())
        self.states: tuple[float, tuple[HostState, ...]] = (0.0, ())


_cache = _Cache()


def forget() -> None:
    """Drop what was remembered, for whoever changed it."""
    _cache.__init__()  # type: ignore[misc]


async def live_hosts() -> tuple[HostState, ...]:
    """The hosts that are alive now, by name.

    Raises:
        redis.ConnectionError, TimeoutError: the broker is down, or does not answer.
    """
    at, states = _cache.states
    if at and time.monotonic() - at < STATE_AGE:
        return states
    return await _look_once()


async def _look() -> tuple[HostState, ...]:
    now = time.monotonic()
    names = await _names(now)
    # Bounded, since everything a client asks begins here: a broker that hangs is as good as one that is down.
    async with asyncio.timeout(BROKER_SECONDS):
        raw = await async_client().mget([queues.host_key(name) for name in names])
    states = tuple(parse_state(name, json.loads(value)) for name, value in zip(names, raw, strict=True) if value)
    _cache.states = (now, states)
    return states


_look_once = Once(_look)


async def _names(now: float) -> tuple[str, ...]:
    at, names = _cache.names
    if not at or now - at >= NAMES_AGE:
        names = tuple(sorted({*await sync_to_async(_known_hosts)(), settings.ENV.host_id}))
        _cache.names = (now, names)
    return names


def _known_hosts() -> list[str]:
    """In a thread that outlives whoever asks: a connection that a database cut must not stay there for good."""
    close_old_connections()
    try:
        return list(Host.objects.values_list("name", flat=True))
    finally:
        close_old_connections()


def models_of_hosts() -> dict[str, frozenset[str]]:
    """Which models each living host has, for code outside an event loop.

    Raises:
        BROKER_ERRORS: the broker cannot say who lives.
    """
    names = sorted({*Host.objects.values_list("name", flat=True), str(settings.ENV.host_id)})
    states = sync_client().mget([queues.host_key(name) for name in names])
    return {
        name: frozenset(model.id for model in parse_state(name, json.loads(state)).models)
        for name, state in zip(names, states, strict=True)
        if state
    }


def parse_state(name: str, raw: Mapping[str, Any]) -> HostState:
    engine = raw.get("engine") or {}
    return HostState(
        name=name,
        instance=str(raw.get("instance") or raw.get("pid") or ""),
        engine_state=str(engine.get("state", "ready")),
        models=tuple(_served(entry) for entry in raw.get("models") or ()),
        slots=int(raw.get("slots") or settings.ENV.slots),
        active=int(raw.get("active") or 0),
        waiting=int(raw.get("waiting") or 0),
        raw=raw,
    )


def _served(entry: Mapping[str, Any]) -> ServedModel:
    capabilities = entry.get("capabilities") or ()
    if isinstance(capabilities, Mapping):
        capabilities = [name for name, has in capabilities.items() if has]
    names = frozenset(str(name) for name in capabilities)
    kind = entry.get("kind") or next((kind for kind in ("embedding", "transcription") if kind in names), "chat")
    return ServedModel(
        id=str(entry["id"]),
        kind=str(kind),
        capabilities=names or frozenset({str(kind)}),
        context=entry.get("context"),
        resident=bool(entry.get("resident")),
        current=bool(entry.get("current")),
        entry=entry,
    )


def looks_like_path(name: str) -> bool:
    return len(name) > MAX_NAME or bool(_PATH_LIKE.search(name))


def model_not_found(name: object) -> Refusal:
    shown = f"'{name}'" if isinstance(name, str) and not looks_like_path(name) else "you named"
    return Refusal(404, "model_not_found", f"The model {shown} does not exist here.", param="model")


async def find_place(name: object, kind: str = "chat", *, strict: bool = False, project: str | None = None) -> Place:
    """Host and model for one request. What is another project's does not exist; ``project`` None sees everything.

    Raises:
        Refusal: 404 the model is unknown, 400 the name is no name or the model is of another kind, 503 no host lives.
    """
    if name is not None and not isinstance(name, str):
        raise Refusal(400, "invalid_type", "'model' must be a string.", param="model")
    if isinstance(name, str) and looks_like_path(name):
        raise model_not_found(name)
    hosts = await live_hosts()
    strict = strict or (isinstance(name, str) and name.startswith(TRAINED_PREFIX))
    return choose(hosts, name, kind, strict=strict or settings.ENV.unknown_model == "refuse", project=project)


def choose(hosts: tuple[HostState, ...], name: str | None, kind: str, *, strict: bool, project: str | None = None) -> Place:
    """The placement decision as a function of data: least loaded host, models already in memory first."""
    if not hosts:
        raise Refusal(503, "engine_unavailable", "No engine is running now. Try again shortly.", retry_after=HOST_RETRY_AFTER)
    offers = [(host, model) for host in hosts for model in host.models if model.visible_to(project)]
    exact = [(host, model) for host, model in offers if model.id == name]
    if exact:
        fitting = [(host, model) for host, model in exact if model.kind == kind]
        if not fitting:
            raise Refusal(
                400, "unsupported_model", f"The model '{name}' is a model for {exact[0][1].kind}, not for {kind}.", param="model"
            )
        return Place(*min(fitting, key=lambda offer: (not offer[1].usable, *_load(offer))))
    if strict and name:
        raise model_not_found(name)
    same_kind = [(host, model) for host, model in offers if model.kind == kind and model.usable]
    current = [(host, model) for host, model in same_kind if model.current] or same_kind
    if not current:
        raise Refusal(
            503 if not offers else 404,
            "model_unavailable" if not offers else "model_not_found",
            f"There is no model for {kind} on this server.",
            param="model",
        )
    return Place(*min(current, key=_load), substituted=bool(name))


def _load(offer: tuple[HostState, ServedModel]) -> tuple[bool, int, str]:
    host, model = offer
    return (not model.resident, host.active + host.waiting, host.name)
