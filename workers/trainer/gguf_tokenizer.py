"""GGUF tokenizer metadata → a ``tokenizers`` definition with the same token ids.

Only what can be reproduced exactly is accepted: byte-level BPE with a pre-tokenizer whose name is known.
A wrong split gives plausible text and wrong ids, so an unknown name is refused instead of guessed.
"""

from __future__ import annotations

from typing import Any

#: GGUF token types (tokenizer.ggml.token_type).
CONTROL, USER_DEFINED = 3, 4

#: Pre-tokenizers that split every digit off and then use GPT-2's pattern.
_DIGITS = {"smollm", "starcoder", "refact", "command-r"}
#: GPT-2's pattern alone.
_PLAIN = {"gpt-2", "default"}
#: Patterns of their own.
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "qwen2": _QWEN2}


class UnsupportedTokenizer(ValueError):
    """The file's tokenizer cannot be reproduced; the message says which part."""


def build(meta: dict[str, Any]) -> Any:
    """The tokenizer of a GGUF file's metadata, as a ``tokenizers.Tokenizer``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    if meta.get("tokenizer.ggml.model") != "gpt2":
        raise UnsupportedTokenizer(
            f"its tokenizer is of type {meta.get('tokenizer.ggml.model')!r}, only byte-level BPE is supported"
        )
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(tokens)}, merges=merges))
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
