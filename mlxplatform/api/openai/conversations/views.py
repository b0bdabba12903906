"""``/v1/conversations``: kept lists of items that responses continue and add to."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest

from mlxplatform.api.fields import array, honoured, metadata, read_fields, table, wrong_value
from mlxplatform.api.openai.responses.items import Item, listed, read_input, refuse_references
from mlxplatform.api.openai.responses.store import not_found
from mlxplatform.api.paging import list_object, page_of, query_ascending
from mlxplatform.http.body import read_json
from mlxplatform.http.views import endpoint
from mlxplatform.inference import history
from mlxplatform.inference.client import new_id
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.history import Kind, Record
from mlxplatform.inference.models import StoredAnswer

#: Items added by one request; OpenAI's limit.
MAX_ITEMS = 20


def read_items(raw: Any, param: str) -> list[Item]:
    items = array(raw, param)
    if len(items) > MAX_ITEMS:
        raise wrong_value(param, f"at most {MAX_ITEMS} items at a time.")
    checked = read_input(items, param)
    refuse_references(checked, param)
    return [{"id": f"item_{secrets.token_hex(12)}", **item} for item in checked]


FIELDS = table(honoured("items", read_items, f"at most {MAX_ITEMS}"), honoured("metadata", metadata))


def _project(request: HttpRequest) -> str:
    return getattr(request, "project", "default")


async def _row(request: HttpRequest, conversation_id: str) -> StoredAnswer:
    row = await history.off_loop(history.load, conversation_id, Kind.CONVERSATION, _project(request))
    if row is None:
        raise not_found(conversation_id, what="Conversation")
    return row


def _shown(row_id: str, created: int, pairs: Mapping[str, str]) -> dict[str, Any]:
    return {"id": row_id, "object": "conversation", "created_at": created, "metadata": dict(pairs)}


def _object(row: StoredAnswer) -> dict[str, Any]:
    return _shown(row.id, int(row.created_at.timestamp()), history.loads(row.metadata))


async def create(request: HttpRequest) -> dict[str, Any]:
    if not history.enabled():
        raise Refusal(400, "store_disabled", "This server keeps no history.")
    fields = read_fields(await read_json(request), FIELDS)
    record = Record(
        id=new_id("conv_"),
        kind=Kind.CONVERSATION,
        project=_project(request),
        created_by=request.identity.actor,  # type: ignore[attr-defined]
        model="",
        request={},
        items=fields.get("items", []),
        answer={},
        metadata=fields.get("metadata", {}),
    )
    await history.off_loop(history.save, record)
    return _object(await _row(request, record.id))


async def retrieve(request: HttpRequest, conversation_id: str) -> dict[str, Any]:
    return _object(await _row(request, conversation_id))


async def update(request: HttpRequest, conversation_id: str) -> dict[str, Any]:
    row = await _row(request, conversation_id)
    pairs = read_fields(await read_json(request), FIELDS).get("metadata", {})
    await history.off_loop(history.update_metadata, row.id, Kind.CONVERSATION, row.project, pairs)
    return _shown(row.id, int(row.created_at.timestamp()), pairs)


async def delete(request: HttpRequest, conversation_id: str) -> dict[str, Any]:
    row = await _row(request, conversation_id)
    await history.off_loop(history.delete, row.id, Kind.CONVERSATION, row.project)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


async def list_items(request: HttpRequest, conversation_id: str) -> dict[str, Any]:
    items = listed(history.loads((await _row(request, conversation_id)).items))
    if not query_ascending(request, default="desc"):
        items.reverse()
    return page_of(items, request)


async def add_items(request: HttpRequest, conversation_id: str) -> dict[str, Any]:
    row = await _row(request, conversation_id)
    items = read_fields(await read_json(request), FIELDS).get("items", [])
    await history.off_loop(history.change_items, row.id, lambda kept: [*kept, *items])
    return list_object(listed(items), False)


async def _item(request: HttpRequest, conversation_id: str, item_id: str) -> Item:
    items = listed(history.loads((await _row(request, conversation_id)).items))
    found = next((item for item in items if item["id"] == item_id), None)
    if found is None:
        raise not_found(item_id, what="Item")
    return found


async def retrieve_item(request: HttpRequest, conversation_id: str, item_id: str) -> dict[str, Any]:
    return await _item(request, conversation_id, item_id)


async def delete_item(request: HttpRequest, conversation_id: str, item_id: str) -> dict[str, Any]:
    await _item(request, conversation_id, item_id)
    row = await _row(request, conversation_id)
    await history.off_loop(history.change_items, row.id, lambda kept: [i for i in kept if i.get("id") != item_id])
    return _object(row)


conversations = endpoint(POST=create)
conversation = endpoint(GET=retrieve, POST=update, DELETE=delete)
conversation_items = endpoint(GET=list_items, POST=add_items)
conversation_item = endpoint(GET=retrieve_item, DELETE=delete_item)
