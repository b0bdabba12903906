"""Names: which words of a text are one, and when two mean one thing. Deterministic, no model.

A name is folded to its words (case, articles, possessives and punctuation do not count); it then matches a
known one by equal words, by the same letters without spaces, by an alias, or by being part of exactly one
longer known name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from mlxplatform.memory.wiki import wording
from mlxplatform.memory.wiki.steering import steers

#: Names of more words than this are sentences.
MOST_WORDS = 6
SHORTEST = 2
_ARTICLES = frozenset({"a", "an", "the", "my", "our", "your", "his", "her", "their", "this", "that"})
_POSSESSIVE = re.compile(r"['’]s\b", re.IGNORECASE)
#: A single common word says too little to be folded into a longer name.
_LONE_WORD = 4
_NO_NAMES = """monday tuesday wednesday thursday friday saturday sunday january february march april may june july august
    september october november december ok yes no hi hello hey thanks thank please sure dear english"""
#: Not a name though written like one.
_NO_NAME = frozenset(_NO_NAMES.split())
_NAME_WORD = re.compile(r"[A-Z][\w’'-]*\w$|[A-Z0-9]\w*$")
#: Small words inside a name.
_JOINTS = frozenset({"of", "the", "de", "la", "van", "von"})
_MARKUP = re.compile(r"[\[\]{}<>|`#*\\]|://|\.\./")
_GERMAN_WORDS = "der die das und ist nicht ein eine einen ich mit auf für den dem"
#: They give away a language which writes every noun with a capital, so that names cannot be told by it.
_GERMAN = frozenset(_GERMAN_WORDS.split())


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


def proper_names(text: str) -> list[str]:
    """Names by their capitals, where a language keeps capitals for names: inside a sentence, or of several words.

    Sentences with markup in them, and those that order their reader about, name nothing.
    """
    if len(_GERMAN & set(text.split())) > 1:
        return []
    found: list[str] = []
    for said in re.split(r"(?<=[.!?…])\s+|\n+", text):
        if not _MARKUP.search(said) and not steers(said):
            found += _names_in(said.split())
    return list(dict.fromkeys(found))


def _names_in(said: Sequence[str]) -> Iterator[str]:
    """Names in the words of one sentence."""
    bare = [word.strip(',;:.!?()"“”') for word in said]
    place = 0
    while place < len(said):
        start, run = place, list[str]()
        while place < len(said) and (not run or not said[place].startswith(("(", '"', "“"))):
            joint = bool(run) and bare[place] in _JOINTS and place + 1 < len(said) and bool(_NAME_WORD.match(bare[place + 1]))
            if not joint and not _NAME_WORD.match(bare[place]):
                break
            run.append(bare[place])
            place += 1
            if not said[place - 1].endswith(bare[place - 1]):
                break
        place = max(place, start + 1)
        while run and (wording.is_filler(run[0]) or run[0].casefold() in _NO_NAME):
            run, start = run[1:], max(start, 1)
        while run and (run[-1] == "I" or run[-1].isdigit()) and len(run) < 3:
            run = run[:-1]
        # A single word that begins a sentence has its capital from there.
        if run and run[0][0].isupper() and (start > 0 or len(run) > 1) and wording.content(" ".join(run)):
            yield " ".join(run)


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
