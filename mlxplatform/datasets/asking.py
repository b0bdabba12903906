"""A template's calls as durable rows: names, seeds and limits of each call, and answers without reasoning.

Knows the row pool and the inference contract; nothing of templates or SQL.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlxplatform.datasets.templates.base import MAX_TOKENS, TEMPERATURE, Answer, CallFailed
from mlxplatform.inference.contract import Constraint, InferenceRequest, Message, Sampling, Tool
from mlxplatform.rows.contract import RowRequest
from mlxplatform.rows.pool import RowPool

#: Characters of a text's end by which it is known again within a row.
CUT_CHARS = 60

_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Voice:
    """How a run speaks to the model. ``temperature`` None leaves it to the template."""

    model: str
    seed: int
    temperature: float | None = None
    top_p: float | None = None
    project: str = "default"


def seed_of(run_seed: int, key: str) -> int:
    """A seed of its own for every call, the same in every attempt."""
    return int.from_bytes(hashlib.blake2b(f"{run_seed}/{key}".encode(), digest_size=4).digest(), "big") >> 1


class Asking:
    """The ``ask`` of one source."""

    def __init__(self, pool: RowPool, voice: Voice, source: str, ordinal: int) -> None:
        self._pool = pool
        self._voice = voice
        self._source = source
        self._ordinal = ordinal
        #: How the texts end that the token limit cut off.
        self.cut: set[str] = set()

    @property
    def model(self) -> str:
        return self._voice.model

    async def __call__(
        self,
        step: str,
        messages: Sequence[Message],
        *,
        max_tokens: int = MAX_TOKENS,
        temperature: float = TEMPERATURE,
        tools: Sequence[Tool] = (),
        constraint: Constraint | None = None,
        prompt: str | None = None,
        stop: Sequence[str] = (),
        tool_choice: str = "auto",
    ) -> Answer:
        key = f"{self._source}:{step}"
        voice = self._voice
        request = InferenceRequest(
            id="",
            model=voice.model,
            kind="chat" if prompt is None else "completion",
            priority="row",
            messages=list(messages),
            prompt=prompt,
            tools=list(tools),
            tool_choice=tool_choice,
            template_kwargs={"enable_thinking": False} if prompt is None else {},
            sampling=Sampling(
                temperature=temperature if voice.temperature is None else voice.temperature,
                top_p=voice.top_p,
                seed=seed_of(voice.seed, key),
            ),
            max_tokens=max_tokens,
            constraint=constraint,
            stop=list(stop),
            project=voice.project,
        )
        result = await self._pool.call(RowRequest(key, self._ordinal, request))
        if result.output is None:
            error = result.error
            raise CallFailed(error.code if error else "internal_error", error.message if error else "")
        out = result.output
        if out.finish_reason == "length" and constraint is None and out.text.strip():
            self.cut.add(out.text.rstrip()[-CUT_CHARS:])
        return Answer(_THINK.sub("", out.text).strip(), out.text, out.reasoning, tuple(out.tool_calls), out.finish_reason)
