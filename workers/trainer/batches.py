"""Which rows step N trains on: a pure function of the data's lengths, the seed and N.

Nothing needs to be remembered for a resume, and an interrupted run sees exactly the batches an
uninterrupted one would. Rows of similar length share a batch; every row is seen once an epoch (the last
batch may be smaller); the order of batches changes with each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workers.trainer.examples import Tokens

#: Widths are one more than a multiple of this, so that few shapes occur.
PAD_TO = 32


class Plan:
    """The order of batches over ``lengths``."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
        self.batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        self._seed = seed
        self._epoch = -1
        self._permutation: np.ndarray = np.empty(0, np.int64)

    @property
    def steps_per_epoch(self) -> int:
        return len(self.batches)

    def rows(self, step: int) -> list[int]:
        """Row numbers of step ``step``, counted from 1."""
        epoch, place = divmod(step - 1, len(self.batches))
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.PCG64([self._seed, epoch]))
            self._permutation, self._epoch = generator.permutation(len(self.batches)), epoch
        return self.batches[int(self._permutation[place])]


def padded(sequences: Sequence[Tokens], limit: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, mask) of one batch, padded with zeros that never count."""
    longest = max(sequence.ids.size for sequence in sequences)
    width = min(1 + PAD_TO * -(-longest // PAD_TO), max(limit, 2))
    tokens = np.zeros((len(sequences), width), np.int32)
    mask = np.zeros((len(sequences), width), np.int8)
    for row, sequence in enumerate(sequences):
        tokens[row, : sequence.ids.size] = sequence.ids
        mask[row, : sequence.mask.size] = sequence.mask
    return tokens, mask
