"""GGUF tokenizer metadata → a ``tokenizers`` definition with the same token ids, and back.

Only what can be reproduced exactly is accepted: byte-level BPE with a pre-tokenizer whose name is known.
A wrong split gives plausible text and wrong ids, so an unknown name is refused instead of guessed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: GGUF token types (tokenizer.ggml.token_type).
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

#: Pre-tokenizers that split every digit off and then use GPT-2's pattern.
_DIGITS = {"smollm", "starcoder", "refact", "command-r"}
#: GPT-2's pattern alone.
_PLAIN = {"gpt-2", "default"}
#: Patterns of their own.
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "qwen2": _QWEN2}


#: Names tried, in this order, for a pre-tokenizer that should be written; synonyms are left out.
_NAMED = ("smollm", "gpt-2", "llama-bpe", "qwen2")


class UnsupportedTokenizer(ValueError):
    """The tokenizer cannot be reproduced; the message says which part."""


def build(meta: dict[str, Any]) -> Any:
    """The tokenizer of a GGUF file's metadata, as a ``tokenizers.Tokenizer``.

    Raises:
        UnsupportedTokenizer: it is of a kind that cannot be reproduced, or does not fit together.
        KeyError: a part is missing.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models

    if meta.get("tokenizer.ggml.model") != "gpt2":
        raise UnsupportedTokenizer(
            f"its tokenizer is of type {meta.get('tokenizer.ggml.model')!r}, only byte-level BPE is supported"
        )
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    vocabulary = {token: n for n, token in enumerate(tokens)}
    if len(kinds) != len(tokens):
        raise UnsupportedTokenizer("it does not say of each token what kind it is")
    # The library panics on what it would not find.
    if any(len(pair) != 2 or any(piece not in vocabulary for piece in (*pair, "".join(pair))) for pair in merges):
        raise UnsupportedTokenizer("its merges name tokens that it does not have")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(meta)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(t, special=False, normalized=False) for t, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED]
    )
    if tokenizer.get_vocab_size() != len(tokens):
        raise UnsupportedTokenizer("its vocabulary names a token twice")
    return tokenizer


def _pre_tokenizer(meta: dict[str, Any]) -> Any:
    from tokenizers import Regex, pre_tokenizers

    prefix = bool(meta.get("tokenizer.ggml.add_space_prefix", False))
    name = meta.get("tokenizer.ggml.pre", "default")
    if name in _PLAIN:
        return pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if name in _DIGITS:
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=prefix)]
        )
    if name in _PATTERNS:
        split = pre_tokenizers.Split(Regex(_PATTERNS[name]), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)])
    raise UnsupportedTokenizer(f"its pre-tokenizer {name!r} is not known here")


def describe(folder: Path, rows: int) -> dict[str, Any]:
    """The metadata of a model directory's tokenizer, for a file whose embedding has ``rows`` rows.

    Raises:
        UnsupportedTokenizer: it is no byte-level BPE, or splits text in a way that has no name.
    """
    definition = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = definition["model"]
    if (
        model.get("type", "BPE") != "BPE"
        or model.get("byte_fallback")
        or (definition.get("decoder") or {}).get("type") != "ByteLevel"
    ):
        raise UnsupportedTokenizer("its tokenizer is no byte-level BPE")
    if (definition.get("normalizer") or {"type": "NFC"}).get("type") != "NFC":
        raise UnsupportedTokenizer("its tokenizer rewrites text before splitting it")
    prefix, name = _name_of(definition.get("pre_tokenizer"))
    by_id = {number: (token, NORMAL) for token, number in model["vocab"].items()}
    for added in definition.get("added_tokens", []):
        by_id[added["id"]] = (added["content"], CONTROL if added["special"] else USER_DEFINED)
    if max(by_id) >= rows:
        raise UnsupportedTokenizer("its tokenizer has more tokens than the model has rows")
    tokens = [by_id.get(number, (f"[PAD{number}]", UNUSED)) for number in range(rows)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": [token for token, _ in tokens],
        "tokenizer.ggml.token_type": [kind for _, kind in tokens],
        "tokenizer.ggml.merges": merges,
        **({"tokenizer.ggml.add_space_prefix": True} if prefix else {}),
    }


def _name_of(wanted: Any) -> tuple[bool, str]:
    """(adds a space in front, name) of a pre-tokenizer's definition."""
    from tokenizers import Tokenizer, models

    probe = Tokenizer(models.BPE())
    for name in _NAMED:
        for prefix in (False, True):
            probe.pre_tokenizer = _pre_tokenizer({"tokenizer.ggml.pre": name, "tokenizer.ggml.add_space_prefix": prefix})
            if _plain(json.loads(probe.to_str())["pre_tokenizer"]) == _plain(wanted):
                return prefix, name
    raise UnsupportedTokenizer("its tokenizer splits text in a way that GGUF has no name for here")


def _plain(definition: Any) -> Any:
    """A pre-tokenizer without what changes no ids."""
    if isinstance(definition, dict):
        kept = {name: _plain(value) for name, value in definition.items() if name not in {"trim_offsets", "invert"}}
        only = kept.get("pretokenizers")
        return only[0] if kept.get("type") == "Sequence" and isinstance(only, list) and len(only) == 1 else kept
    return [_plain(item) for item in definition] if isinstance(definition, list) else definition
