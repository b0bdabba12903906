"""Query parameters of lists and streams, checked like body fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest

from mlxplatform.api.fields import integer, metadata, one_of, wrong_type, wrong_value


def query_flag(request: HttpRequest, name: str) -> bool:
    raw = request.GET.get(name, "").lower()
    if raw in {"false", "0", ""}:
        return False
    if raw in {"true", "1"}:
        return True
    raise wrong_value(name, "use true or false.")


def query_number(request: HttpRequest, name: str, default: int, minimum: int, maximum: int) -> int:
    raw = request.GET.get(name, "")
    if not raw:
        return default
    digits = raw.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise wrong_type(name, "an integer", raw)
    number: int = integer(minimum, maximum)(int(raw), name)
    return number


def query_ascending(request: HttpRequest, *, default: str) -> bool:
    return one_of("asc", "desc")(request.GET.get("order", default), "order") == "asc"


def query_pairs(request: HttpRequest, name: str) -> dict[str, str]:
    """``name[key]=value`` of the query, as SDKs write an object."""
    opening = f"{name}["
    found = {key[len(opening) : -1]: value for key, value in request.GET.items() if key.startswith(opening) and key[-1] == "]"}
    return metadata(found, name)


def list_object(data: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def page_of(items: list[dict[str, Any]], request: HttpRequest) -> dict[str, Any]:
    """A page of items by ``limit`` and ``after``.

    Raises:
        Refusal: ``after`` names none of them; an empty page would look like the end of the list.
    """
    limit = query_number(request, "limit", 20, 1, 100)
    after = request.GET.get("after")
    if after:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise wrong_value("after", "it must be the id of something in this list.")
        items = items[ids.index(after) + 1 :]
    return list_object(items[:limit], len(items) > limit)
