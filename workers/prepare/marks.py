"""Reasoning marks: how a model fences off its reasoning, told from its template and vocabulary."""

from __future__ import annotations

from workers.prepare.model import TextModel

#: Known pairs, most specific first.
PAIRS: tuple[tuple[str, str], ...] = (
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|channel>thought", "<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<think>", "</think>"),
)


def reasoning_marks(model: TextModel) -> tuple[str, str] | None:
    """The pair this model uses, None for a model that does not reason in marks."""
    if model.channels:
        return None
    template = "\n".join(model.templates.values())
    for start, end in PAIRS:
        known = model.tokenizer.token_to_id(start) is not None and model.tokenizer.token_to_id(end) is not None
        if known or end in template:
            return start, end
    return None


def opens_in_reasoning(rendered: str, marks: tuple[str, str] | None) -> bool:
    """Whether the prompt ends inside an open mark, so that the first token already is reasoning."""
    if marks is None:
        return False
    start, end = marks
    opened = rendered.rfind(start)
    # Only the tail counts: an unclosed mark far up in somebody's message opens nothing.
    return opened > rendered.rfind(end) and not rendered[opened + len(start) :].strip()
