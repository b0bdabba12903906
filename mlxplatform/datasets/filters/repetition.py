"""Text that goes round in circles, as small models write it: one letter for ever, or the same words again and again."""

from __future__ import annotations

import re

from mlxplatform.datasets.filters.distinct import words

#: The same letter this often in a row is no word of any language.
_RUN = re.compile(r"([^\W\d_])\1{7,}")
#: Words looked at together, words below which nothing is said, and the share of different groups below which a text is
#: a loop. Refrains of songs and tables of similar lines stay above it.
GROUP, FEWEST, LOOP = 4, 30, 0.4


def is_repetitive(text: str) -> bool:
    if _RUN.search(text):
        return True
    found = words(text)
    if len(found) < FEWEST:
        return False
    groups = [tuple(found[at : at + GROUP]) for at in range(len(found) - GROUP + 1)]
    return len(set(groups)) / len(groups) < LOOP
