"""Reading: status, pages, sections, search, links, history, diff; the tools; MCP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
from mlxplatform.inference.contract import Refusal
from mlxplatform.memory import mcp, reading, tools
from mlxplatform.memory.models import Vault
from mlxplatform.memory.orders import only
from mlxplatform.memory.vault import ARTICLES
from mlxplatform.memory.views.asking import needed, number, project_of, vault_of
from mlxplatform.memory.wire import vault_json

NO_VAULT = {
    "ok": False,
    "enabled": False,
    "error": "There is no memory yet. Make one with POST /api/memory/init.",
    "code": "no_vault",
}


def reads(function: Callable[[HttpRequest, Vault], dict[str, Any]]) -> Callable[[HttpRequest], dict[str, Any]]:
    """A view of one vault. A project without any gets 200 and ``enabled: false``, so that a page can offer to make one."""

    def view(request: HttpRequest) -> dict[str, Any]:
        try:
            vault = vault_of(request)
        except Refusal:
            if not request.GET.get("vault") and not Vault.objects.filter(project=project_of(request)).exists():
                return NO_VAULT
            raise
        return {"ok": True, "vault": vault.name, **function(request, vault)}

    return view


def vaults(request: HttpRequest) -> dict[str, Any]:
    return {
        "ok": True,
        "vaults": [vault_json(vault) for vault in Vault.objects.filter(project=project_of(request)).order_by("name")],
    }


status = reads(lambda request, vault: reading.status(vault))
page_list = reads(lambda request, vault: {"pages": reading.pages(vault, _folder(request))})
article = reads(lambda request, vault: {"article": reading.article(vault, needed(request, "name"), _folder(request))})
toc = reads(lambda request, vault: {"toc": reading.toc(reading.text_of(vault, needed(request, "name"))[1])})
section = reads(lambda request, vault: reading.section(vault, needed(request, "name"), request.GET.get("section", "")))
links = reads(lambda request, vault: reading.links(vault, needed(request, "name")))


def _folder(request: HttpRequest) -> str:
    folder = request.GET.get("folder", ARTICLES)
    if folder not in reading.FOLDERS:
        raise Refusal(400, "invalid_value", f"folder must be one of {', '.join(reading.FOLDERS)}", param="folder")
    return folder


@reads
def search(request: HttpRequest, vault: Vault) -> dict[str, Any]:
    limit = number(request, "limit", reading.SEARCH_LIMIT, reading.SEARCH_MAX)
    return {
        "hits": reading.search(
            vault, needed(request, "q"), request.GET.get("scope", "all"), limit, request.GET.get("mode", "words")
        )
    }


@reads
def history(request: HttpRequest, vault: Vault) -> dict[str, Any]:
    limit = number(request, "limit", reading.HISTORY_LIMIT, reading.HISTORY_MAX)
    return {"commits": reading.history(vault, request.GET.get("name") or None, limit)}


@reads
def diff(request: HttpRequest, vault: Vault) -> dict[str, Any]:
    return {"diff": reading.diff(vault, needed(request, "name"), needed(request, "rev"))}


def tool_list(request: HttpRequest) -> dict[str, Any]:
    return {"ok": True, "tools": tools.as_functions()}


async def tool_call(request: HttpRequest, name: str) -> dict[str, Any]:
    body = only(await read_json(request), {"vault": str, "arguments": dict})
    return await sync_to_async(_tool)(request, name, body)


def _tool(request: HttpRequest, name: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"ok": True, "result": tools.call(vault_of(request, body.get("vault")), name, body.get("arguments", {}))}


async def mcp_endpoint(request: HttpRequest) -> HttpResponseBase:
    message = await read_json(request)
    answer = await sync_to_async(lambda: mcp.answer(vault_of(request), message))()
    return HttpResponse(status=202) if answer is None else json_response(answer)
