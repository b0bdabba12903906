"""Embeddings and scores, through a real engine child."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer

from mlxplatform.inference.contract import Embedded, Failed, Finished, Scored
from mlxplatform.library import architectures
from tests.engine.conftest import EMBEDDER, Answer, Host
from workers.engine import encoder, loading

TEXTS = ["A man is eating food.", "Someone eats a meal.", "The stock market fell today.", "A cat sleeps on the sofa."]


def vectors(answer: Answer) -> np.ndarray:
    embedded = next(event for event in answer.events if isinstance(event, Embedded))
    return np.stack([np.frombuffer(vector, dtype="<f4") for vector in embedded.vectors])


def embed(host: Host, texts: list[str], **fields: object) -> Answer:
    return host.ask(model=EMBEDDER, kind="embedding", messages=[], inputs=texts, **fields)


def test_a_paraphrase_is_near_and_the_rest_is_far(shared_host: Host) -> None:
    found = vectors(embed(shared_host, TEXTS))
    assert found.shape == (4, 384)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    cosines = found @ found[0]
    assert cosines[1] == pytest.approx(0.76, abs=0.03)
    assert abs(cosines[2]) < 0.15
    assert abs(cosines[3]) < 0.15


def test_a_text_gets_the_same_vector_alone_and_among_others(shared_host: Host) -> None:
    together = vectors(embed(shared_host, [*TEXTS, "word " * 200]))
    for index, text in enumerate(TEXTS):
        assert np.allclose(vectors(embed(shared_host, [text]))[0], together[index], atol=1e-4)


def test_fewer_dimensions_are_cut_and_normalised(shared_host: Host) -> None:
    short = vectors(embed(shared_host, TEXTS[:1], dimensions=64))
    whole = vectors(embed(shared_host, TEXTS[:1]))
    assert short.shape == (1, 64)
    assert np.allclose(short[0], whole[0, :64] / np.linalg.norm(whole[0, :64]), atol=1e-5)


def test_the_library_knows_the_same_encoders() -> None:
    assert architectures.ENCODERS == encoder.FAMILIES


def test_usage_counts_the_tokens_of_all_texts(shared_host: Host) -> None:
    last = embed(shared_host, TEXTS).last
    assert isinstance(last, Finished)
    assert last.usage.prompt > 4 * len(TEXTS)
    assert last.usage.completion == 0


def test_an_embedding_model_refuses_to_chat_and_a_chat_model_to_embed(shared_host: Host) -> None:
    wrong = shared_host.ask(model="tiny", kind="embedding", messages=[], inputs=["x"]).last
    assert isinstance(wrong, Failed)
    assert (wrong.status, wrong.code) == (400, "unsupported_model")


def score(host: Host, question: str, labels: list[str]) -> tuple[list[float], Finished]:
    answer = host.ask(question, kind="score", labels=labels)
    assert isinstance(answer.last, Finished)
    scored = next(event for event in answer.events if isinstance(event, Scored))
    return scored.logprobs, answer.last


def test_scores_are_the_models_log_probabilities(shared_host: Host) -> None:
    question = "What is the capital of Japan?"
    scores, end = score(shared_host, question, ["The capital of Japan is Tokyo.", "The capital of Japan is Rome."])
    assert scores[0] > scores[1]
    assert end.usage.completion == 0
    assert all(value <= 0 and math.isfinite(value) for value in scores)


def test_a_second_question_about_the_same_state_reuses_its_cache(shared_host: Host) -> None:
    state = "The sky is blue. Snow is white. " * 6
    score(shared_host, state + "Is snow white?", ["yes", "no"])
    again, end = score(shared_host, state + "Is grass green?", ["yes", "no"])
    assert end.usage.cached > 0.7 * end.usage.prompt
    fresh, _ = score(shared_host, state + "Is grass green?", ["yes", "no"])
    assert again == pytest.approx(fresh, abs=1e-3)


def test_a_decoder_made_for_embeddings_uses_its_last_token(make_host: Callable[..., Host], models_home: Path) -> None:
    """As Qwen3-Embedding is laid out: a decoder's directory with sentence-transformers' files beside it."""
    folder = models_home / "models" / "tiny-embedding"
    shutil.copytree(models_home / "models" / "tiny", folder)
    (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Normalize"}]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    try:
        host = make_host()
        found = vectors(host.ask(model="tiny-embedding", kind="embedding", messages=[], inputs=[TEXTS[0], "word " * 40]))
        model = loading.load(folder, "float32", "cpu").model
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        for text, vector in zip((TEXTS[0], "word " * 40), found, strict=True):
            last = np.array(model.model(mx.array([tokenizer.encode(text).ids]))[0, -1])
            assert np.allclose(vector, last / np.linalg.norm(last), atol=1e-4)
        told = host.ask(model="tiny-embedding", kind="embedding", messages=[], inputs=[TEXTS[0]], instruction="Find the dish")
        assert not np.allclose(vectors(told)[0], found[0], atol=1e-3)
    finally:
        shutil.rmtree(folder)
