"""``/v1/adapters``: which LoRA adapters engines have mounted, and mounting or unmounting one by hand.

A request that names an adapter mounts it anyway; mounting ahead of time loads its base model, checks that it fits and
says so before anybody waits. An adapter of another project does not exist here. Answers carry no server path: an
adapter is the name of its directory in the data directory, and ``path`` may only repeat that name.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from mlxplatform.accounts import audit
from mlxplatform.api.fields import honoured, read_fields, table, text, wrong_value
from mlxplatform.broker import queues
from mlxplatform.broker.connections import async_client
from mlxplatform.http.body import read_json
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.hub import control
from mlxplatform.inference.placement import HostState, live_hosts

#: Longest name looked at, characters.
MAX_NAME = 256
#: Seconds for a host to mount, its base model's load included; the answer is 503 after that.
MOUNT_SECONDS = 60.0
#: Seconds between looks at what the hosts say.
LOOK_SECONDS = 0.25
#: Characters that join names in a request's ``adapter``.
_JOINERS = "+,"

FIELDS = table(
    honoured("id", text(MAX_NAME, empty=False), "the name of the adapter's directory", required=True),
    honoured("path", text(MAX_NAME), "may only repeat the id"),
)

Found = tuple[HostState, dict[str, Any]]


async def _visible(request: HttpRequest) -> list[Found]:
    """Every adapter of every live host that the asker's project may use."""
    project = getattr(request, "project", "default")
    hosts = await live_hosts()
    if not hosts:
        raise Refusal(503, "engine_unavailable", "No engine is running now. Try again shortly.", retry_after=5)
    return [
        (host, entry) for host in hosts for entry in host.raw.get("adapters") or () if entry.get("project", "") in ("", project)
    ]


async def _find(request: HttpRequest, adapter_id: str, param: str | None) -> list[Found]:
    """An adapter on each host that has it, by id or by the name requests use."""
    found = [(host, entry) for host, entry in await _visible(request) if adapter_id in (entry["id"], entry["name"])]
    if not found:
        raise Refusal(404, "adapter_not_found", "There is no such adapter.", param=param)
    return found


def _mounted(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": entry["id"],
        "object": "adapter",
        "name": entry["name"] or None,
        "base_model": entry["base_model"] or None,
        "rank": entry["rank"],
        "scale": entry["scale"],
        "size_bytes": entry["size_bytes"],
        "mounted_layers": entry.get("layers", 0),
    }


def _once(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each adapter once, however many hosts have it."""
    return list({entry["id"]: entry for entry in reversed(entries)}.values())[::-1]


async def list_mounted(request: HttpRequest) -> dict[str, Any]:
    data = _once([_mounted(entry) for _, entry in await _visible(request) if entry["state"] == "mounted"])
    return {"object": "list", "data": data, "adapters": data}


async def list_available(request: HttpRequest) -> dict[str, Any]:
    """Everything on disk, with whether it is mounted. Reading mounts nothing."""
    entries = sorted((entry for _, entry in await _visible(request)), key=lambda entry: entry["state"] != "mounted")
    data = _once([{**_mounted(entry), "mounted": entry["state"] == "mounted"} for entry in entries])
    data.sort(key=lambda entry: entry["id"])
    return {"object": "list", "data": data, "adapters": data}


async def mount(request: HttpRequest) -> dict[str, Any]:
    fields = read_fields(await read_json(request), FIELDS)
    adapter_id = fields["id"]
    if any(joiner in adapter_id for joiner in _JOINERS):
        raise wrong_value("id", "it may not contain + or ,: these join several adapters in a request.")
    if fields.get("path", adapter_id) != adapter_id:
        raise wrong_value("path", "adapters lie in the data directory under their id; leave path out or repeat the id.")
    found = await _find(request, adapter_id, "id")
    adapter_id = found[0][1]["id"]
    if found[0][1]["fine_tune_type"] != "lora":
        raise Refusal(
            400, "adapter_mismatch", "Only LoRA adapters can be mounted; merge this one into its model instead.", param="id"
        )
    for host, entry in found:
        served = next((model for model in host.models if model.id == entry["base_model"]), None)
        if served is None:
            base = entry["base_model"] or "an unknown model"
            raise Refusal(400, "adapter_mismatch", f"The adapter was made for {base}, which is not on this server.", param="id")
        if not served.resident and (served.entry.get("plan") or {}).get("fits") is False:
            raise Refusal(
                503, "memory_admission", "Its model does not fit beside what is in use or pinned.", param="id", retry_after=10
            )
        if entry["state"] != "mounted":
            await async_client().rpush(queues.control_key(host.name), control("mount", adapter=adapter_id))
    entry = await _settled(request, adapter_id, {"mounted", "refused"}, asked=time.time())
    if entry["state"] == "refused":
        raise Refusal(400, "adapter_mismatch", str(entry["reason"]), param="id")
    await _noted(request, "mount", adapter_id)
    answer = _mounted(entry)
    return {name: answer[name] for name in ("id", "mounted_layers", "rank", "scale")}


async def unmount(request: HttpRequest, adapter_id: str) -> dict[str, Any]:
    """Once nothing running uses it; until then it stays listed."""
    found = await _find(request, adapter_id, None)
    mounted = [(host, entry) for host, entry in found if entry["state"] in ("mounted", "mounting")]
    if not mounted:
        raise Refusal(404, "adapter_not_mounted", "The adapter is not mounted.")
    for host, _ in mounted:
        await async_client().rpush(queues.control_key(host.name), control("unmount", adapter=found[0][1]["id"]))
    await _noted(request, "unmount", found[0][1]["id"])
    return {"id": found[0][1]["id"], "removed_layers": max(entry.get("layers", 0) for _, entry in mounted)}


async def _noted(request: HttpRequest, what: str, adapter_id: str) -> None:
    identity = request.identity  # type: ignore[attr-defined]
    await sync_to_async(audit.record)(identity.actor, f"adapter.{what}", adapter_id, project=identity.project)


async def _settled(request: HttpRequest, adapter_id: str, states: set[str], asked: float) -> dict[str, Any]:
    """The adapter's entry once a host said something of it that is newer than the order."""
    deadline = time.monotonic() + MOUNT_SECONDS
    while time.monotonic() < deadline:
        for host, entry in await _find(request, adapter_id, "id"):
            fresh = entry["state"] == "mounted" or float(host.raw.get("at", 0)) > asked
            if fresh and entry["state"] in states:
                return entry
        await asyncio.sleep(LOOK_SECONDS)
    raise Refusal(503, "engine_unavailable", "The adapter is not mounted yet. Try again shortly.", retry_after=5)


adapters_view = endpoint(GET=list_mounted, POST=mount)
available_view = endpoint(GET=list_available)
adapter_view = endpoint(DELETE=unmount)
