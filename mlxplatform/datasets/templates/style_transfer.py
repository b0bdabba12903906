"""Paragraphs rewritten by the model in the style of reference texts."""

from __future__ import annotations

from collections.abc import Iterator

from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, paragraphs, system, user
from mlxplatform.datasets.templates.parsing import itself

#: Small models go on with the next exercise; nothing of it belongs to this one.
NEXT = ("\nRewrite this", "\nTexts in the wanted style")


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, paragraph in enumerate(paragraphs(inputs["raw_text"]), 1):
        yield Source(str(number), paragraph)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    rewritten = await ask(
        "rewrite",
        [
            system("You rewrite texts in a given style. You keep their meaning and add nothing."),
            user(
                f"Texts in the wanted style:\n{inputs['reference_samples']}\n\n"
                f"Rewrite this in that style and give the rewritten text only:\n{source.data}"
            ),
        ],
        stop=NEXT,
    )
    return [Draft({"prompt": source.data, "completion": itself(rewritten.text, source.data)})]


TEMPLATE = Template(
    id="style_transfer",
    label="Style transfer",
    description="Rewrites every paragraph of a text in the style of your samples.",
    output_format="prompt_completion",
    fields=(
        Field("reference_samples", "textarea", "Samples of the style", required=True),
        Field("raw_text", "textarea", "Text to rewrite", hint="paragraphs separated by blank lines", required=True),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
    check="answers_optional",
)
