"""The memory as an MCP server: JSON-RPC over one HTTP endpoint, stateless, tools only.

Answers are plain JSON (the protocol lets a server choose that over a stream). No sessions, no server
requests, nothing that writes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mlxplatform.inference.contract import Refusal
from mlxplatform.memory import tools
from mlxplatform.memory.models import Vault

#: Newest first; a client that asks for another gets the newest.
PROTOCOLS = ("2025-06-18", "2025-03-26", "2024-11-05")
INSTRUCTIONS = "Read-only memory of past conversations. Resolve a name, read the page's contents, then one section; search last."

METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST = -32601, -32602, -32600


def answer(vault: Vault, message: Any) -> dict[str, Any] | None:
    """The answer to one message, or None for a notification."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0" or not isinstance(message.get("method"), str):
        return _error(message.get("id") if isinstance(message, dict) else None, INVALID_REQUEST, "not a JSON-RPC 2.0 request")
    if "id" not in message:
        return None
    params = message.get("params") or {}
    if not isinstance(params, dict):
        return _error(message["id"], INVALID_PARAMS, "params must be an object")
    run = {"initialize": _initialize, "ping": _ping, "tools/list": _list, "tools/call": _call}.get(message["method"])
    if run is None:
        return _error(message["id"], METHOD_NOT_FOUND, "this server has tools only")
    try:
        return {"jsonrpc": "2.0", "id": message["id"], "result": run(vault, params)}
    except Refusal as refusal:
        return _error(message["id"], INVALID_PARAMS, refusal.message)


def _error(id_: Any, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_ if isinstance(id_, str | int) else None, "error": {"code": code, "message": text}}


def _initialize(vault: Vault, params: dict[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in PROTOCOLS else PROTOCOLS[0],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "mlx-platform-memory", "version": "1"},
        "instructions": INSTRUCTIONS,
    }


def _ping(vault: Vault, params: dict[str, Any]) -> dict[str, Any]:
    return {}


def _list(vault: Vault, params: dict[str, Any]) -> dict[str, Any]:
    read_only = {"readOnlyHint": True, "openWorldHint": False}
    listed = [
        {"name": tool.name, "description": tool.description, "inputSchema": tool.schema(), "annotations": read_only}
        for tool in tools.TOOLS.values()
    ]
    return {"tools": listed}


def _call(vault: Vault, params: dict[str, Any]) -> dict[str, Any]:
    name = params.get("name")
    if not isinstance(name, str) or name not in tools.TOOLS:
        raise Refusal(404, "tool_not_found", f"there is no such tool; the tools are {', '.join(tools.TOOLS)}")
    try:
        value = tools.call(vault, name, params.get("arguments") or {})
    except Refusal as refusal:
        # What a model did wrong is told to the model, as the protocol wants it.
        return {"content": [{"type": "text", "text": refusal.message}], "isError": True}
    return {
        "content": [{"type": "text", "text": msgspec.json.encode(value).decode()}],
        "structuredContent": value,
        "isError": False,
    }
