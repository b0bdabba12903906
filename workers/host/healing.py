"""After an engine death: who continues together, who is tried alone, who is the culprit. Pure decisions.

A first death proves nothing against anybody: everyone continues. Whoever was there at a second death without
having got on in between is a suspect, and suspects run one at a time until each has passed the place where
it stood. The culprit is whoever runs alone at its second death or later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.host.journal import Entry

#: Tokens emitted since the last death that clear a request of earlier deaths: a poison repeats at its place.
PROGRESS = 16
#: Tokens past the place of death that acquit a suspect running alone.
ACQUITTAL = 2
#: Deaths that make a suspect.
SUSPECT_DEATHS = 2


@dataclass(frozen=True)
class Verdict:
    together: list[Entry]
    one_by_one: list[Entry]
    culprit: Entry | None = None


def after_death(present: Sequence[Entry], waiting: Sequence[Entry]) -> Verdict:
    """``present`` were in the engine when it died, ``waiting`` had not been handed over. Counts the death."""
    for entry in present:
        if len(entry.emitted) - entry.mark >= PROGRESS:
            entry.deaths = 0
        entry.deaths += 1
        entry.mark = len(entry.emitted)
    suspects = [entry for entry in present if entry.deaths >= SUSPECT_DEATHS]
    if len(present) == 1 and suspects:
        return Verdict(list(waiting), [], suspects[0])
    return Verdict([entry for entry in present if entry.deaths < SUSPECT_DEATHS] + list(waiting), suspects)


def acquitted(entry: Entry) -> bool:
    """Whether a suspect running alone has shown that it is harmless."""
    return entry.outcome is not None or len(entry.emitted) >= entry.mark + ACQUITTAL
