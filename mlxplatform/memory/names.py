"""When two names mean one thing: deterministic folding, no model.

A name is folded to its words (case, articles, possessives and punctuation do not count); it then matches a
known one by equal words, by the same letters without spaces, by an alias, or by being part of exactly one
longer known name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from mlxplatform.memory.wiki import wording

#: Names of more words than this are sentences.
MOST_WORDS = 6
SHORTEST = 2
_ARTICLES = frozenset({"a", "an", "the", "my", "our", "your", "his", "her", "their", "this", "that"})
_POSSESSIVE = re.compile(r"['’]s\b", re.IGNORECASE)
#: A single common word says too little to be folded into a longer name.
_LONE_WORD = 4


def fold(name: str) -> str:
    """The key of a name: its words in lower case, '' when nothing is left."""
    text = _POSSESSIVE.sub("", unicodedata.normalize("NFKC", name).casefold())
    found = re.findall(r"[^\W_]+(?:[+#]+)?", text)
    while len(found) > 1 and found[0] in _ARTICLES:
        found = found[1:]
    return " ".join(found)[:120]


def usable(name: str, text: str, ignored: Iterable[str] = ()) -> str:
    """The name as a page title if the passage really contains it and it is worth one; '' otherwise."""
    title = wording.title(name)
    key = fold(title)
    parts = key.split()
    if not title or len(key) < SHORTEST or len(parts) > MOST_WORDS or key.isdigit() or not wording.content(title):
        return ""
    if f" {key} " not in fold_text(text) or any(topic and topic in key for topic in ignored):
        return ""
    return title


def fold_text(text: str) -> str:
    """A passage folded like a name, so that names can be looked for in it as whole words."""
    found = re.findall(r"[^\W_]+(?:[+#]+)?", _POSSESSIVE.sub("", unicodedata.normalize("NFKC", text).casefold()))
    return " " + " ".join(found) + " "


class Resolver:
    """Known names and what they stand for. ``add`` as pages and entities appear."""

    def __init__(self) -> None:
        self._by_key: dict[str, int] = {}
        self._squeezed: dict[str, int] = {}
        self._by_word: dict[str, set[str]] = {}

    def add(self, name: str, entity: int) -> None:
        key = fold(name)
        if not key:
            return
        self._by_key.setdefault(key, entity)
        self._squeezed.setdefault(key.replace(" ", ""), entity)
        for word in key.split():
            self._by_word.setdefault(word, set()).add(key)

    def named_in(self, text: str) -> dict[int, str]:
        """Known things that a passage names outright, with the name used; the model need not have noticed."""
        parts = fold_text(text).split()
        found: dict[int, str] = {}
        for start in range(len(parts)):
            for length in range(min(MOST_WORDS, len(parts) - start), 0, -1):
                key = " ".join(parts[start : start + length])
                if key in self._by_key and (length > 1 or len(key) >= _LONE_WORD):
                    found.setdefault(self._by_key[key], key)
                    break
        return found

    def find(self, name: str) -> int | None:
        """The entity a name stands for, or None."""
        key = fold(name)
        if key in self._by_key:
            return self._by_key[key]
        if key.replace(" ", "") in self._squeezed:
            return self._squeezed[key.replace(" ", "")]
        parts = key.split()
        if not parts or (len(parts) == 1 and len(parts[0]) < _LONE_WORD):
            return None
        longer = set.intersection(*(self._by_word.get(part, set()) for part in parts))
        meant = {self._by_key[candidate] for candidate in longer}
        return meant.pop() if len(meant) == 1 else None
