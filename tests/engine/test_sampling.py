"""Vectorised sampling against plain numpy, and against mlx-lm's own sampler where the settings are plain."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from mlxplatform.inference.contract import Sampling
from workers.engine.penalties import processors
from workers.engine.sampling import BatchSampler, RowSampler, ToneCurve, row_sampler, sample, uniform

VOCAB = 96


def logits(seed: int, rows: int = 1, vocab: int = VOCAB) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=(rows, vocab)).astype(np.float32) * 3)


def drawn(row: RowSampler, scores: mx.array, draws: int = 400) -> list[int]:
    """Many draws of one row from the same logits, in one batch."""
    rows = [RowSampler(**{**row.__dict__, "seed": seed}) for seed in range(draws)]
    return sample(mx.broadcast_to(scores, (draws, scores.shape[-1])), rows).tolist()


def reference(scores: np.ndarray, row: RowSampler) -> np.ndarray:
    """The distribution a row draws from, written the slow way."""
    scores = scores.astype(np.float64)
    order = np.argsort(-scores, kind="stable")
    keep = np.ones(len(scores), bool)
    if row.top_k:
        keep[order[row.top_k :]] = False
    if row.top_p < 1:
        pool = np.where(keep, scores, -np.inf)
        p = np.exp(pool - pool.max())
        p /= p.sum()
        above = np.concatenate([[0.0], np.cumsum(p[order])[:-1]])
        keep[order[above >= row.top_p]] = False
    if row.min_p > 0:
        keep &= scores >= scores.max() + math.log(row.min_p)
    weights = np.where(keep, np.exp((scores - scores.max()) / row.temperature), 0.0)
    return weights / weights.sum()


@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.2, 2.0),
    top_k=st.sampled_from([0, 2, 5, 40, VOCAB - 1]),
    top_p=st.sampled_from([1.0, 0.2, 0.6, 0.95]),
    min_p=st.sampled_from([0.0, 0.01, 0.2]),
)
@settings(max_examples=30, deadline=None)
def test_every_draw_is_the_one_the_reference_distribution_gives(seed, temperature, top_k, top_p, min_p):
    scores = logits(seed)
    row = RowSampler(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    p = reference(np.array(scores)[0], row)
    tokens = drawn(row, scores, 64)
    assert all(p[token] > 0 for token in tokens)
    expected = p[tokens].sum() / len(tokens)
    assert expected > 0


def test_frequencies_follow_the_probabilities():
    scores = logits(3)
    row = RowSampler(temperature=0.8, top_k=6, top_p=0.9)
    p = reference(np.array(scores)[0], row)
    counts = np.bincount(drawn(row, scores, 4_000), minlength=VOCAB) / 4_000
    assert np.abs(counts - p).max() < 0.035


@pytest.mark.parametrize(
    ("settings_", "mask"),
    [
        ({"top_k": 7}, lambda x: apply_top_k(x, 7)),
        ({"top_p": 0.8}, lambda x: apply_top_p(x, 0.8)),
        ({"min_p": 0.05}, lambda x: apply_min_p(x, 0.05)),
    ],
)
def test_plain_settings_keep_the_tokens_mlx_lm_keeps(settings_, mask):
    for seed in range(20):
        scores = logits(seed)
        logprobs = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
        kept = np.isfinite(np.array(mask(logprobs)))[0]
        assert (reference(np.array(scores)[0], RowSampler(temperature=1.0, **settings_)) > 0).tolist() == kept.tolist()
        assert all(kept[token] for token in drawn(RowSampler(temperature=5.0, **settings_), scores))


def test_rows_of_one_batch_draw_as_if_alone():
    scores = logits(11, rows=7)
    rows = [
        RowSampler(),
        RowSampler(temperature=1.0, seed=1),
        RowSampler(temperature=0.7, top_k=5, seed=2),
        RowSampler(temperature=1.3, top_p=0.9, seed=3),
        RowSampler(temperature=1.0, top_k=20, top_p=0.5, min_p=0.02, seed=4),
        RowSampler(temperature=1.0, xtc_probability=1.0, xtc_threshold=0.1, seed=5),
        RowSampler(temperature=1.0, curve=ToneCurve(), seed=6),
    ]
    together = sample(scores, [RowSampler(**row.__dict__) for row in rows]).tolist()
    alone = [sample(scores[i : i + 1], [RowSampler(**row.__dict__)]).item() for i, row in enumerate(rows)]
    assert together == alone
    assert together[0] == int(mx.argmax(scores[0]).item())


def test_a_row_taken_up_again_continues_its_own_sequence():
    scores = [logits(seed) for seed in range(12)]
    whole = RowSampler(temperature=1.5, seed=99)
    straight = [sample(step, [whole]).item() for step in scores]
    again = RowSampler(temperature=1.5, seed=99, step=5)
    assert [sample(step, [again]).item() for step in scores[5:]] == straight[5:]


def test_different_seeds_differ_and_equal_seeds_do_not():
    scores = [logits(seed) for seed in range(20)]

    def run(seed: int) -> list[int]:
        row = RowSampler(temperature=1.5, seed=seed)
        return [sample(step, [row]).item() for step in scores]

    assert run(42) == run(42)
    assert run(42) != run(7)


def test_uniform_numbers_are_spread_evenly():
    numbers = np.array([uniform(seed, step) for seed in range(100) for step in range(100)])
    assert abs(numbers.mean() - 0.5) < 0.01
    assert np.abs(np.histogram(numbers, 10, (0, 1))[0] / 1000 - 1).max() < 0.15


def test_the_batch_sampler_notices_a_changed_batch():
    batch = BatchSampler()
    scores = logits(5, rows=2)
    first = batch.sample(scores, [RowSampler(), RowSampler()]).tolist()
    assert first == mx.argmax(scores, axis=-1).tolist()
    mixed = batch.sample(scores, [RowSampler(), RowSampler(temperature=1.0, top_k=3, seed=8)]).tolist()
    assert mixed[0] == first[0]
    assert batch.sample(scores[:1], [RowSampler()]).tolist() == first[:1]


@pytest.mark.parametrize("top_k", [VOCAB, VOCAB + 1, 10**9])
def test_top_k_of_the_whole_vocabulary_is_no_limit(top_k):
    row = row_sampler(Sampling(temperature=1.0, top_k=top_k), vocab_size=VOCAB)
    assert row.top_k == 0
    assert sample(logits(1), [row]).shape == (1,)


@pytest.mark.parametrize("top_p", [0.0, 1.0])
def test_top_p_of_zero_or_one_is_off(top_p):
    assert row_sampler(Sampling(temperature=1.0, top_p=top_p), vocab_size=VOCAB).top_p == 1.0


def test_only_tokens_a_mask_leaves_are_drawn():
    scores = mx.where(mx.arange(VOCAB)[None] == 17, 1.0, -mx.inf)
    for row in (
        RowSampler(),
        RowSampler(temperature=1.0),
        RowSampler(temperature=1.0, top_k=5),
        RowSampler(temperature=1.0, top_p=0.5),
        RowSampler(temperature=1.0, xtc_probability=1.0),
        RowSampler(temperature=1.0, curve=ToneCurve()),
    ):
        assert set(drawn(row, scores, 50)) == {17}


def test_xtc_removes_the_top_choices_but_the_least_and_spares_protected_ids():
    scores = mx.log(mx.array([[0.4, 0.3, 0.2, 0.06, 0.04]]))
    row = RowSampler(temperature=1.0, xtc_probability=1.0, xtc_threshold=0.1)
    assert set(drawn(row, scores)) == {2, 3, 4}
    assert set(drawn(RowSampler(**{**row.__dict__, "xtc_protected": (0,)}), scores)) == {0, 2, 3, 4}
    assert set(drawn(RowSampler(**{**row.__dict__, "xtc_probability": 0.0}), scores)) == {0, 1, 2, 3, 4}


def test_tone_curve_without_bends_is_plain_temperature():
    scores = logits(2)
    straight = ToneCurve(shoulder=0.0, toe=0.0)
    assert drawn(RowSampler(temperature=0.9, curve=straight), scores) == drawn(RowSampler(temperature=0.9), scores)


def test_tone_curve_matches_its_definition():
    scores = np.array(logits(2))[0].astype(np.float64)
    z = scores - (scores.max() - 6)
    m = 1 / 0.8
    past = np.maximum(np.abs(z) - 4, 0)
    bent = np.where(z > 4, m * 4 + m * 4 * np.log1p(past / 4), np.where(z < -4, -m * 4 - m * 6 * np.log1p(past / 6), m * z))
    p = np.exp(bent - bent.max())
    p /= p.sum()
    counts = np.bincount(
        drawn(RowSampler(temperature=0.8, curve=ToneCurve()), mx.array(scores[None].astype(np.float32)), 4_000), minlength=VOCAB
    )
    assert np.abs(counts / 4_000 - p).max() < 0.035


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 1.3, "repetition_context_size": 4},
        {"presence_penalty": 0.7, "presence_context_size": 5},
        {"frequency_penalty": -0.4, "frequency_context_size": 20},
        {"logit_bias": {3: 5.0, 90: -100.0}},
    ],
)
def test_penalties_are_mlx_lms(asked):
    tokens = mx.array([1, 5, 5, 7, 3, 5, 90, 3])
    ours, theirs = logits(4), logits(4)
    for apply in processors(Sampling(**asked), vocab_size=VOCAB):
        ours = apply(tokens, ours)
    for apply in make_logits_processors(**asked):
        theirs = apply(tokens, theirs)
    assert np.allclose(np.array(ours), np.array(theirs))


def test_a_window_of_zero_is_the_whole_history():
    tokens = mx.array(list(range(40)))
    scores = logits(4)
    before = np.array(scores)
    [apply] = processors(Sampling(presence_penalty=1.0, presence_context_size=0), vocab_size=VOCAB)
    assert np.allclose(np.array(apply(tokens, scores))[0, :40], before[0, :40] - 1)


@pytest.mark.parametrize("asked", [{"repetition_penalty": 0.0}, {"repetition_penalty": -1.0}, {"logit_bias": {10**9: 1.0}}, {}])
def test_values_that_would_hurt_a_step_are_no_processors(asked):
    assert processors(Sampling(**asked), vocab_size=VOCAB) == []
