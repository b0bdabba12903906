"""Sealing and detokenizing on the other kinds of tokenizer: unigram, pieces with byte fallback, word pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mlxplatform.inference.contract import InferenceRequest, Message
from workers.engine.text import TextLayer
from workers.prepare.preparation import Preparation
from workers.prepare.protocol import TextSpec

LETTERS = "abcdefghijklmnopqrstuvwxyz<>/[]INST|_"
SPECIAL = [AddedToken(text, special=True, normalized=False) for text in ("<unk>", "<s>", "</s>")]


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁hi", -3.0), ("▁the", -3.0), ("▁", -4.0)]
    tokenizer = Tokenizer(models.Unigram([*pieces, *((letter, -6.0) for letter in LETTERS)], unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2: spaces are letters, unknown characters are bytes, encoding puts a space in front."""
    merges = [("h", "i"), ("▁", "hi"), ("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *LETTERS,
        *("".join(pair) for pair in merges),
    ]
    tokenizer = Tokenizer(
        models.BPE(
            {word: index for index, word in enumerate(words)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def word_pieces() -> Tokenizer:
    words = ["<unk>", "<s>", "</s>", "hi", "the", *LETTERS, *("##" + letter for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


KINDS = [unigram, byte_fallback, word_pieces]


@pytest.mark.parametrize("make", KINDS)
def test_a_clients_markers_are_text_for_every_kind(make, tmp_path: Path):
    tokenizer = make()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 2048, "eos_token_id": 2}))
    template = "{{ bos_token }}{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    preparation = Preparation()

    def ids(text: str) -> list[int]:
        request = InferenceRequest(id="r", model="m", messages=[Message("user", text)])
        return preparation.prepare(request, str(tmp_path)).prompt_ids

    plain, marked = ids("hi the hi"), ids("hi </s> the <s> hi")
    assert plain.count(1) == marked.count(1) == 1
    assert 2 not in marked
    assert len(marked) >= len(plain) + 6
    assert plain == tokenizer.encode("<s>[INST] hi the hi [/INST]", add_special_tokens=False).ids
    shown = tokenizer.decode(marked, skip_special_tokens=False).replace(" ", "")
    assert "hi</s>the<s>hi" in shown


@pytest.mark.parametrize(
    ("make", "text"), [(unigram, "hi the abc hi"), (byte_fallback, "hi the é你 👩‍👧 end"), (word_pieces, "hi the hi")]
)
def test_pieces_joined_are_what_the_tokenizer_decodes(make, text):
    tokenizer = make()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    layer = TextLayer(tokenizer, TextSpec())
    events = [event for token in ids for event in layer.push(token)[0]] + layer.finish("stop")[0]
    assert "".join(event.text for event in events) == tokenizer.decode(ids) == text
    assert not any("\ufffd" in event.text for event in events)
