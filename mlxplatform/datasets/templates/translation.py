"""Texts translated by the model, kept as translation tasks."""

from __future__ import annotations

from collections.abc import Iterator

from mlxplatform.datasets.filters.language import guess
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
from mlxplatform.datasets.templates.parsing import itself
from mlxplatform.inference.contract import Message

TEMPERATURE = 0.3
#: Tokens of a translation: so many for each character of the text, between these bounds. Without, a small model that has begun
#: to repeat itself goes on for minutes.
TOKENS_PER_CHARACTER, FEWEST_TOKENS, MOST_TOKENS = 2, 60, 1_500
#: Small models add remarks unless they are shown that nobody does.
EXAMPLES = (
    ("Italian", "Good evening, how are you?", "Buonasera, come sta?"),
    ("Dutch", "The train to Utrecht leaves at ten.", "De trein naar Utrecht vertrekt om tien uur."),
)


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    languages = [name.strip() for name in inputs["languages"].split(",") if name.strip()]
    for number, text in enumerate(paragraphs(inputs["texts"]), 1):
        for place, language in enumerate(languages, 1):
            yield Source(f"{number}.{place}", (text, language))


def asked_for(text: str, language: str) -> str:
    return f"Translate into {language}:\n\n{text}"


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    text, language = source.data
    asked = asked_for(text, language)
    answer = await ask(
        "translate",
        [
            system("You translate faithfully and reply with the translation only."),
            *(
                turn
                for into, given, said in EXAMPLES
                if into.casefold() != language.casefold()
                for turn in (user(asked_for(given, into)), Message("assistant", said))
            ),
            user(asked),
        ],
        max_tokens=min(max(TOKENS_PER_CHARACTER * len(text), FEWEST_TOKENS), MOST_TOKENS),
        temperature=TEMPERATURE,
    )
    # One paragraph was given; what comes after one is a remark.
    found = paragraphs(itself(answer.text, text))
    if not found:
        return [Drop("empty_answer", text[:120])]
    translated = found[0]
    if answer.finish_reason == "length" and len(found) == 1:
        return [Drop("cut_off", translated[:120])]
    before, after = guess(text), guess(translated)
    if translated.casefold() == text.casefold() or before == after != "und":
        return [Drop("not_translated", translated[:120])]
    return [chat_row(("user", asked), ("assistant", translated), metadata={"language": language})]


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
