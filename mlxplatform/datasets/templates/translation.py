"""Texts translated by the model, kept as translation tasks."""

from __future__ import annotations

from collections.abc import Iterator

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

TOKENS, TEMPERATURE = 800, 0.3


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    languages = [name.strip() for name in inputs["languages"].split(",") if name.strip()]
    for number, text in enumerate(paragraphs(inputs["texts"]), 1):
        for place, language in enumerate(languages, 1):
            yield Source(f"{number}.{place}", (text, language))


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    text, language = source.data
    asked = f"Translate into {language}:\n\n{text}"
    answer = await ask(
        "translate",
        [system("You translate faithfully and reply with the translation only."), user(asked)],
        max_tokens=TOKENS,
        temperature=TEMPERATURE,
    )
    if not answer.text:
        return [Drop("empty_answer", text[:120])]
    if answer.text.casefold() == text.casefold():
        return [Drop("not_translated", text[:120])]
    return [chat_row(("user", asked), ("assistant", answer.text), metadata={"language": language})]


TEMPLATE = Template(
    id="translation",
    label="Translation",
    description="Translates each text into the languages you name.",
    output_format="messages",
    fields=(
        Field("texts", "textarea", "Texts", hint="separated by blank lines", required=True),
        Field("languages", "text", "Languages, comma-separated", hint="German, French", required=True),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
)
