"""OpenAI's usage object and log-probability entries, shared by chat, legacy completions and stored answers."""

from __future__ import annotations

from typing import Any

from mlxplatform.inference.contract import TokenLogprob, Usage


def usage_object(used: Usage) -> dict[str, Any]:
    """``lane`` is the field by which clients of the seed system see that the request ran in the common batch."""
    return {
        "prompt_tokens": used.prompt,
        "completion_tokens": used.completion,
        "total_tokens": used.prompt + used.completion,
        "prompt_tokens_details": {"cached_tokens": used.cached},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning},
        "lane": "batched",
    }


def logprob_entry(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token": entry.text,
        "logprob": entry.logprob,
        "bytes": list(entry.text.encode()),
        "top_logprobs": [{"token": text, "logprob": value, "bytes": list(text.encode())} for _, text, value in entry.top],
    }
