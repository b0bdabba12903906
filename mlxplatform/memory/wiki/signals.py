"""What a person may want to restructure: pages to split, to merge, or that hold no thread.

Numbers only, written to Talk pages; nothing is ever restructured by the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from mlxplatform.memory.wiki import wording
from mlxplatform.memory.wiki.page import bare, parse, prose, sentences, word_count

#: A section of at least this many words, and as long as all others together, asks for a page of its own.
SPLIT_WORDS = 120
#: Two pages whose words are this much alike ask to be one.
MERGE_LIKENESS = 0.5
#: A page whose sentences share less than this on average holds no thread.
LEAST_COHESION = 0.4
#: A word that at most so many pages use is rare.
RARE_PAGES = 20
#: Sentences that make a mean worth reporting.
COHESION_SENTENCES = 6


@dataclass(frozen=True)
class Signal:
    kind: str
    stem: str
    message: str


def split_signal(stem: str, text: str) -> Signal | None:
    sections = [(word_count(section.body), section.title) for section in parse(text).body_sections]
    if len(sections) < 2:
        return None
    largest, title = max(sections)
    if largest >= SPLIT_WORDS and largest >= sum(words for words, _ in sections) - largest:
        return Signal(
            "split", stem, f"“{title}” has {largest} words, as many as all other sections together; it may want its own page."
        )
    return None


def cohesion(text: str) -> float | None:
    """Mean share of each sentence's words that the rest of the page uses too."""
    said = [wording.content(bare(sentence)) for sentence in sentences(prose(text))]
    said = [words for words in said if words]
    if len(said) < COHESION_SENTENCES:
        return None
    shares = []
    for index, words in enumerate(said):
        others = frozenset().union(*said[:index], *said[index + 1 :])
        shares.append(len(words & others) / len(words))
    return sum(shares) / len(shares)


def signals(pages: Mapping[str, str]) -> list[Signal]:
    found: list[Signal] = []
    for stem, text in sorted(pages.items()):
        if split := split_signal(stem, text):
            found.append(split)
        thread = cohesion(text)
        if thread is not None and thread < LEAST_COHESION:
            found.append(
                Signal("cohesion", stem, f"Its sentences share {thread:.0%} of their words; the page may cover several subjects.")
            )
    for one, other in alike(pages):
        found.append(Signal("merge", one, f"It and {other.replace('_', ' ')} say much the same; they may want to be one page."))
    return found


def alike(pages: Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs of pages whose words are much the same. Only pages that share a rare word are compared."""
    contents = {stem: wording.content(prose(text)) for stem, text in sorted(pages.items())}
    using: dict[str, list[str]] = {}
    for stem, words in contents.items():
        for word in words:
            using.setdefault(word, []).append(stem)
    pairs = {pair for stems in using.values() if 2 <= len(stems) <= RARE_PAGES for pair in combinations(stems, 2)}
    return [
        (one, other)
        for one, other in sorted(pairs)
        if len(contents[one] & contents[other]) / len(contents[one] | contents[other]) >= MERGE_LIKENESS
    ]
