"""Whether a machine's edit of a page may pass. The default is not to destroy.

An edit passes only when every conversation cited before is cited after (except those a correction or a
person released by name), footnotes match one to one, at least 70 % of the words survive, and the frame
of the page stands. The answer is the list of reasons against it; an empty list is a yes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from mlxplatform.memory.wiki.page import (
    REFERENCES,
    SEE_ALSO,
    anchor_of,
    cited_hashes,
    definitions,
    fenced_lines,
    markers,
    parse,
    word_count,
)

#: Least share of a page's words that an edit must keep.
KEEP_WORDS = 0.7
#: Hashes of the examples in the policy pages; they cite nothing.
PLACEHOLDER_HASHES = frozenset({"00000000", "00000001"})


def reasons_against(before: str, after: str, released: Collection[str] = (), corrected_words: int = 0) -> list[str]:
    """Why this edit is refused, in words for the run report. ``before`` is '' for a new page.

    ``released`` are conversations, ``corrected_words`` words of sentences, that a correction takes out by name.
    """
    reasons: list[str] = []
    lost = cited_hashes(before) - cited_hashes(after) - PLACEHOLDER_HASHES - set(released)
    if lost:
        reasons.append(f"lost the source {', '.join(f'conv:{value}' for value in sorted(lost))}")
    reasons += footnote_faults(before, after)
    words_before, words_after = max(word_count(before) - corrected_words, 0), word_count(after)
    if words_before and words_after < KEEP_WORDS * words_before:
        reasons.append(f"keeps {words_after} of {words_before} words, less than {KEEP_WORDS:.0%}")
    titles = [line for line, fenced in fenced_lines(after) if not fenced and line.startswith("# ")]
    if not titles:
        reasons.append("lost the title")
    anchors = Counter(anchor_of(section.title) for section in parse(after).sections)
    if definitions(after) and not anchors[anchor_of(REFERENCES)]:
        reasons.append("lost the References section")
    if anchors[anchor_of(SEE_ALSO)] > 1:
        reasons.append("has more than one See also section")
    return reasons


def footnote_faults(before: str, after: str) -> list[str]:
    """Faults in the footnotes. Named labels, and definitions a person wrote without a source, are theirs."""
    reasons: list[str] = []
    theirs = {definition.text for definition in definitions(before) if not definition.hashes}
    defined = [definition for definition in definitions(after) if definition.label.isdigit()]
    counts = Counter(definition.label for definition in defined)
    used = {label for label in markers(after) if label.isdigit()}
    if doubled := sorted(label for label, count in counts.items() if count > 1):
        reasons.append(f"footnote {', '.join(doubled)} is defined more than once")
    if undefined := sorted(used - counts.keys(), key=int):
        reasons.append(f"footnote {', '.join(undefined)} has no definition")
    if unused := sorted((d.label for d in defined if d.label not in used and d.text not in theirs), key=int):
        reasons.append(f"footnote {', '.join(unused)} is never used")
    if counts and sorted(map(int, counts)) != list(range(1, len(counts) + 1)):
        reasons.append("footnote numbers are not 1, 2, 3 …")
    if bad := sorted((d.label for d in defined if len(d.hashes) != 1 and d.text not in theirs), key=int):
        reasons.append(f"footnote {', '.join(bad)} does not cite exactly one conversation")
    return reasons
