"""Values as every database's JSON takes them. Pure.

A loss can be NaN, a model can write half a surrogate pair or a NUL, a runner can return a path: none of that may keep
a job's log or end from being written. What JSON cannot say becomes the nearest thing it can.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

#: Deeper values are shown as text.
DEPTH = 50


def plain(value: Any, depth: int = 0) -> Any:
    """``value`` with only JSON types in it: not finite numbers are null, unusable characters are replaced."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if depth < DEPTH:
        if isinstance(value, dict):
            return {text(str(key)): plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [plain(item, depth + 1) for item in value]
    return text(str(value))


def text(value: str) -> str:
    """Without NUL and lone surrogates, which PostgreSQL refuses."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
