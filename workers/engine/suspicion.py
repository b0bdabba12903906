"""Which sequence makes the steps of a batch fail. A pure rule over what each of them lived through, without mlx.

A failed step names nobody. Who was there at two failures without having got on in between is a suspect and runs alone until
it has passed the place; who fails while alone is the culprit.
"""

from __future__ import annotations

from workers.engine.sequence import Sequence

#: Tokens emitted since the last failure that clear a sequence of earlier ones.
PROGRESS = 16
#: Failures that make a suspect, and tokens past the place of failure that acquit it.
SUSPECT_FAILURES, ACQUITTAL = 2, 2


def after_failure(present: list[Sequence]) -> Sequence | None:
    """Note a failed step on everybody who ran in it; answers the culprit, when it is known."""
    for sequence in present:
        if len(sequence.emitted) - sequence.mark >= PROGRESS:
            sequence.failures = 0
        sequence.failures += 1
        sequence.mark = len(sequence.emitted)
        sequence.alone = sequence.failures >= SUSPECT_FAILURES
    return present[0] if len(present) == 1 and present[0].alone else None


def after_token(sequence: Sequence) -> None:
    """A suspect that passed the place of its failure is none any more."""
    sequence.alone = sequence.alone and len(sequence.emitted) < sequence.mark + ACQUITTAL
