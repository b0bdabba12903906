"""Preference pairs typed or exported as CSV. No model."""

from __future__ import annotations

import io
from collections.abc import Iterator

from mlxplatform.datasets.imports import csvrows
from mlxplatform.datasets.imports.items import Problem, Unreadable
from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template

COLUMNS = ("prompt", "chosen", "rejected")


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    try:
        stream = io.BytesIO(inputs["csv_text"].encode("utf-8", "surrogatepass"))
        for number, item in enumerate(csvrows.read(stream, "The text"), 1):
            if isinstance(item, Problem):
                yield Drop(item.code, item.reason, item.where)
                continue
            where, cells = item
            row = {name.casefold(): value for name, value in cells.items()}
            missing = [name for name in COLUMNS if name not in row]
            if missing:
                yield Drop("missing_column", f"the header lacks {', '.join(missing)}; it has {', '.join(row)}", "line 1")
                return
            empty = [name for name in COLUMNS if not row[name].strip()]
            if empty:
                yield Drop("empty_value", f"{', '.join(empty)} empty", where)
            else:
                yield Source(str(number), [row[name] for name in COLUMNS])
    except Unreadable as error:
        yield Drop(error.code, error.message)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    return [Draft(dict(zip(COLUMNS, source.data, strict=True)))]


TEMPLATE = Template(
    id="dpo_pref_pairs",
    label="Preference pairs from CSV",
    description="Reads a CSV with the columns prompt, chosen and rejected.",
    output_format="dpo",
    fields=(Field("csv_text", "textarea", "CSV", hint="prompt,chosen,rejected\n…", required=True),),
    sources=sources,
    build=build,
)
