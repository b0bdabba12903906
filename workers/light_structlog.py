"""structlog without rich and Twisted, which it imports where it finds them and which take most of its 60 ms.

The first import of a child whose start somebody waits for; whoever needs either of them later still gets it.
"""

from __future__ import annotations

import importlib
import sys

#: What structlog does without when it is not installed.
_NOT_NEEDED = ("rich", "twisted")


def import_light_structlog() -> None:
    """Does nothing when structlog is already there."""
    if "structlog" in sys.modules:
        return
    left_out = [name for name in _NOT_NEEDED if name not in sys.modules]
    for name in left_out:
        sys.modules[name] = None  # type: ignore[assignment]  # how Python says that a module cannot be imported
    try:
        importlib.import_module("structlog")
    finally:
        for name in left_out:
            del sys.modules[name]
