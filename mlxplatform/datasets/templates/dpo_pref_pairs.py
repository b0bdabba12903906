"""Preference pairs typed or exported as CSV. No model."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template

COLUMNS = ("prompt", "chosen", "rejected")


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    reader = csv.reader(io.StringIO(inputs["csv_text"].removeprefix("\ufeff").strip("\r\n"), newline=""))
    header = [name.strip().casefold() for name in next(reader, [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        yield Drop("missing_column", f"the header lacks {', '.join(missing)}; it has {', '.join(header) or 'nothing'}", "line 1")
        return
    places = [header.index(name) for name in COLUMNS]
    try:
        for number, row in enumerate(reader, 1):
            if not any(cell.strip() for cell in row):
                continue
            values = [row[place] if place < len(row) else "" for place in places]
            empty = [name for name, value in zip(COLUMNS, values, strict=True) if not value.strip()]
            if empty:
                yield Drop("empty_value", f"{', '.join(empty)} empty", f"row {number}, line {reader.line_num}")
            else:
                yield Source(str(number), values)
    except csv.Error as error:
        yield Drop("not_csv", str(error), f"line {reader.line_num}")


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
