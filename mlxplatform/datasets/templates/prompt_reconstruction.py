"""From a human text back to a task: a guessed prompt, a generic draft, and the human text as the good rewrite."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mlxplatform.datasets.filters.distinct import rouge_l
from mlxplatform.datasets.templates.base import (
    Ask,
    Draft,
    Drop,
    Field,
    Inputs,
    Source,
    Template,
    chat_row,
    paragraphs,
    system,
    user,
)
from mlxplatform.datasets.templates.examples import request_behind

PROMPT_TOKENS, DRAFT_TOKENS = 160, 800
#: A guess that is this much like the text is the text once more and no request for it.
REPEATS = 0.5
FALLBACK_PROMPT = "Write a short, informative passage on this subject."
ROLE = "You rewrite drafts into the requested voice. You keep every fact and add none."

_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_LOCKS = {
    "urls": re.compile(r"https?://[^\s<>\"')\]]+"),
    "percentages": re.compile(r"\b\d+(?:[.,]\d+)?\s?%"),
    "currencies": re.compile(r"(?:[$€£¥]\s?\d[\d.,]*\d|[$€£¥]\s?\d|(?<![\w.,])\d[\d.,]*\s?(?:USD|EUR|GBP|JPY|CHF)\b)"),
    "dates": re.compile(
        r"\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
        rf"|\b{_MONTH}\.? \d{{1,2}}(?:, \d{{4}})?\b|\b\d{{1,2}} {_MONTH}(?: \d{{4}})?\b"
    ),
    "code": re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL),
    "citations": re.compile(r"\[\d+(?:,\s?\d+)*\]|\([A-Z][\w-]+(?: et al\.)?,? \d{4}\)"),
}


def preservation_locks(text: str) -> dict[str, list[str]]:
    """What a rewrite must keep word for word, by kind, in order of appearance."""
    return {kind: list(dict.fromkeys(pattern.findall(text))) for kind, pattern in _LOCKS.items()}


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, paragraph in enumerate(paragraphs(inputs["target_text"]), 1):
        yield Source(str(number), paragraph)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    original = source.data
    guessed = await ask(
        "prompt",
        request_behind(original),
        max_tokens=PROMPT_TOKENS,
    )
    prompt = guessed.text or FALLBACK_PROMPT
    if rouge_l(prompt, original) >= REPEATS:
        return [Drop("no_request", prompt[:120])]
    draft = await ask(
        "draft",
        [system("You are a typical writing assistant."), user(prompt)],
        max_tokens=DRAFT_TOKENS,
    )
    if not draft.text:
        return [Drop("empty_draft", prompt[:120])]
    asked = (
        f"Style: {inputs['style']}\nTone: {inputs['tone']}\nKeep: {inputs['preserve']}\nAvoid: {inputs['avoid']}\n\n"
        f"Request: {prompt}\n\nDraft:\n{draft.text}"
    )
    metadata = {
        "inferred_prompt": prompt,
        "source_ai_draft": draft.text,
        "preservation_locks": preservation_locks(original),
        "style": inputs["style"],
        "tone": inputs["tone"],
    }
    return [chat_row(("system", ROLE), ("user", asked), ("assistant", original), metadata=metadata)]


TEMPLATE = Template(
    id="prompt_reconstruction",
    label="Prompt reconstruction",
    description="Takes a human text, lets the model guess its prompt and write a generic draft; the row teaches the way back.",
    output_format="messages",
    fields=(
        Field(
            "target_text",
            "textarea",
            "Human text",
            hint="paragraphs separated by blank lines",
            required=True,
            aliases=("human_text",),
        ),
        Field("style", "text", "Style", default="direct technical blog"),
        Field("tone", "text", "Tone", default="analytical, clear, non-corporate"),
        Field("preserve", "text", "Keep", default="facts, names, numbers, URLs, citations, code blocks, quotes"),
        Field("avoid", "text", "Avoid", default="em dashes, generic transitions, marketing language"),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
)
