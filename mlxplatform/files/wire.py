"""Files and uploads as the OpenAI API writes them, and the list envelope with honest cursors."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet

from mlxplatform.files.models import StoredFile, Upload
from mlxplatform.inference.contract import Refusal

M = TypeVar("M", bound=Model)


def unix(at: dt.datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


def file_json(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": unix(file.created_at),
        "expires_at": unix(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": file.status,
        "status_details": None,
    }


def upload_json(upload: Upload) -> dict[str, Any]:
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": unix(upload.created_at),
        "expires_at": unix(upload.expires_at),
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.status,
        "file": file_json(upload.file) if upload.file else None,
    }


def whole_number(params: Mapping[str, str], name: str, default: int, most: int) -> int:
    """A query parameter from 1 to ``most``.

    Raises:
        Refusal: naming it.
    """
    raw = params.get(name, "")
    if not raw:
        return default
    if not (raw.isascii() and raw.isdigit() and len(raw) < 10 and 1 <= int(raw) <= most):
        raise Refusal(400, "invalid_value", f"{name} must be a whole number from 1 to {most}.", param=name)
    return int(raw)


def page(
    rows: QuerySet[M],
    render: Callable[[M], dict[str, Any]],
    *,
    limit: int,
    after: str = "",
    before: str = "",
    newest_first: bool = True,
    after_name: str = "after",
    before_name: str = "before",
) -> dict[str, Any]:
    """One page of ``rows`` by (created_at, id). ``has_more`` is true exactly when another page in this direction exists.

    ``before`` asks for the page that ends right before that row, in the same order.

    Raises:
        Refusal: a cursor that names no row of the list.
    """
    backwards = bool(before)
    cursor, name = (before, before_name) if backwards else (after, after_name)
    descending = newest_first != backwards
    if cursor:
        mark = rows.filter(pk=cursor).values_list("created_at", "pk").first()
        if mark is None:
            raise Refusal(400, "invalid_value", f"{name} must be the id of something in this list.", param=name)
        word = "lt" if descending else "gt"
        rows = rows.filter(**{f"created_at__{word}e": mark[0]})
        rows = rows.filter(Q(**{f"created_at__{word}": mark[0]}) | Q(**{f"pk__{word}": mark[1]}))
    sign = "-" if descending else ""
    found = list(rows.order_by(f"{sign}created_at", f"{sign}pk")[: limit + 1])
    has_more = len(found) > limit
    found = found[:limit]
    if backwards:
        found.reverse()
    data = [render(row) for row in found]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
