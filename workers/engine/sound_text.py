"""JSON values whose texts can be written down: read from what a model or a client wrote as JSON text.

JSON can spell half of a surrogate pair (``"\\ud800"``); no UTF-8 holds one, so what reads such a value must mend it
before anything is encoded. Half pairs become U+FFFD, as undecodable bytes do.
"""

from __future__ import annotations

import json
import re
from typing import Any

_HALF = re.compile("[\ud800-\udfff]")


def mended(value: Any) -> Any:
    """The value with every half surrogate pair in its texts and keys replaced."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [mended(item) for item in value]
    if isinstance(value, dict):
        return {mended(key): mended(item) for key, item in value.items()}
    return value


def loads(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return mended(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dumps(value: Any) -> str:
    """Strict JSON of a value.

    Raises:
        ValueError: it holds a number that JSON has none for, or is nested too deeply.
    """
    try:
        return json.dumps(mended(value), ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
