"""Text that would steer its reader instead of telling about a subject: orders, talk of the task, marks of a prompt.

Two nets. Patterns for the languages in which people are known to try it. And signs that need no language: turns and
template tokens of a chat, hidden characters, active markup, long unreadable runs.

Knows nothing of pages. It is a net, not a proof: what passes it is still one line of plain prose that its notes
carry, and can reach no path, link or other page. So it can afford to let ordinary statements through.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from mlxplatform.memory.wiki.orders_spoken import PATTERNS, ROLES

_STEERS = re.compile("|".join(f"(?:{pattern})" for pattern in PATTERNS), re.IGNORECASE | re.VERBOSE | re.MULTILINE)

#: What marks a prompt in any language: tokens of chat templates, turns of a transcript, active markup, encoded text.
_MARKS = re.compile(
    rf"""<[|｜][^|｜>]{{1,40}}[|｜]> | \[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\] | <</?SYS>>
    | </?(?:start_of_turn|end_of_turn|bos|eos|s|unk|pad|tool_call|tool_response|function_call|think|system|assistant|user
      |instructions?|end_of_text|begin_of_text|eot_id)\b[^<>]{{0,40}}>
    | ^\s*(?:[#*>_-]+\s*)?(?:{ROLES})\s*[*_]*\s*[:：] | ^\s*\#+\s*(?:{ROLES})\s*$
    | <\s*(?:script|iframe|object|embed|style|meta|link|form|svg|base)\b | \bon[a-z]{{3,12}}\s*=\s*['"\w]
    | (?:javascript|vbscript)\s*: | \bdata:[a-z]+/[a-z0-9.+-]+[;,] | !\[[^\]]*\]\(\s*(?:https?:)?//
    | [A-Za-z0-9+/=_-]{{60,}}
    """,
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
#: Characters nobody sees that carry text or turn its direction: bidirectional overrides, tags, supplementary selectors.
_HIDDEN = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e01ef]")
#: The tags that end the flags of England, Scotland and Wales, which do carry a meaning.
_FLAGS = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f")
#: Invisible ones that scripts and emoji need: no sign by themselves, taken out before looking.
_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u115f\u1160\u180b-\u180e\u200b-\u200f\u2060-\u2064\u206a-\u206f\ufe00-\ufe0f\ufeff]")
#: Letters of other scripts that look like Latin ones.
_LOOKALIKES = str.maketrans("аеорсухіѕјһԁԛԝвкмнтгαορνικτε", "aeopcyxisjhdqwbkmhtraopvikte")
#: A word with letters of two scripts.
_MIXED = re.compile(r"\b(?=\w*[a-z])(?=\w*[\u0370-\u052f])\w{3,}\b")
#: A word spread out letter by letter.
_SPREAD = re.compile(r"\b(?:\w[ ._*-]){3,}\w\b")


def steers(text: str) -> bool:
    """Whether a text orders its reader about, talks about the task, or looks like a part of a prompt."""
    if _HIDDEN.search(_FLAGS.sub("", text)) or _MARKS.search(text):
        return True
    return any(_STEERS.search(reading) for reading in _readings(text))


def _readings(text: str) -> Iterator[str]:
    """The text as it stands, and as it reads once disguises are taken off."""
    plain = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold().replace("’", "'")
    yield plain
    undisguised = _MIXED.sub(lambda word: word[0].translate(_LOOKALIKES), plain)
    undisguised = _SPREAD.sub(lambda word: re.sub(r"[ ._*-]", "", word[0]), undisguised)
    if undisguised != plain:
        yield undisguised
