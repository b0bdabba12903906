"""File names given by clients: shown, never used as a path. Pure."""

from __future__ import annotations

import re
import unicodedata

from mlxplatform.inference.contract import Refusal

#: Longest name kept, in characters; what file systems and headers take without trouble.
NAME_LIMIT = 255

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def base_name(raw: str) -> str:
    """The last part of the name, whichever separators were used.

    Raises:
        Refusal: nothing usable is left, or it is too long.
    """
    name = unicodedata.normalize("NFC", raw).replace("\\", "/").rstrip("/").rpartition("/")[2].strip()
    if not name or name in {".", ".."} or _CONTROL.search(name):
        raise Refusal(400, "invalid_filename", "The uploaded file needs a plain file name.", param="file")
    if len(name) > NAME_LIMIT:
        raise Refusal(400, "invalid_filename", f"The file name is longer than {NAME_LIMIT} characters.", param="file")
    return name
