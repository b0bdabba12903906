"""Rows of a data set on the Hugging Face hub, through its datasets server. Needs the network, no model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import httpx

from mlxplatform.datasets.convert import kind
from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, SourceError, Template
from mlxplatform.datasets.templates.format_conversion import as_text

SERVER = "https://datasets-server.huggingface.co"
#: Rows of one page (the server's limit), seconds a request may take, and waits before the next tries.
PAGE, TIMEOUT, WAITS = 100, 30.0, (0.5, 1.0)
#: Statuses worth another try.
AGAIN = frozenset({429, 500, 502, 503, 504})

FORMATS = ("text", "messages_user_only", "prompt_completion")


def _get(client: httpx.Client, path: str, **params: Any) -> dict[str, Any]:
    for wait in (*WAITS, None):
        try:
            answer = client.get(path, params={name: value for name, value in params.items() if value != ""})
        except httpx.TransportError:
            if wait is None:
                raise SourceError("offline", "The Hugging Face datasets server cannot be reached from here.") from None
        else:
            if answer.status_code == 200:
                return dict(answer.json())
            if answer.status_code not in AGAIN or wait is None:
                raise SourceError("hub_refused", f"The datasets server answered {answer.status_code}: {answer.text[:200]}")
        time.sleep(wait)
    raise AssertionError("the last wait is None")


def _config(client: httpx.Client, inputs: Inputs) -> str:
    if inputs["config"]:
        return str(inputs["config"])
    splits = _get(client, "/splits", dataset=inputs["hf_id"]).get("splits", [])
    with_split = [entry["config"] for entry in splits if entry.get("split") == inputs["split"]]
    return str((with_split or [entry["config"] for entry in splits] or ["default"])[0])


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    token = os.environ.get("HF_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    text_column, label_column = inputs["text_column"], inputs["label_column"]
    kept = offset = 0
    with httpx.Client(base_url=SERVER, headers=headers, timeout=TIMEOUT) as client:
        config = _config(client, inputs)
        while True:
            page = _get(
                client, "/rows", dataset=inputs["hf_id"], config=config, split=inputs["split"], offset=offset, length=PAGE
            )
            rows = [entry["row"] for entry in page.get("rows", [])]
            if offset == 0 and rows:
                _check_columns(rows[0], [text_column, *([label_column] if label_column else [])])
            for number, row in enumerate(rows, offset):
                if inputs["max_rows"] and kept >= inputs["max_rows"]:
                    return
                said = as_text("" if row.get(text_column) is None else row[text_column])
                text = (said or "").strip()
                if said is None:
                    yield Drop("not_text", f"{text_column} is {kind(row[text_column])}", f"row {number}")
                elif len(text) < inputs["min_chars"] or not text:
                    yield Drop("too_short", f"{len(text)} characters", f"row {number}")
                elif label_column and inputs["label_filter"] and str(row.get(label_column)) != inputs["label_filter"]:
                    yield Drop("other_label", str(row.get(label_column))[:100], f"row {number}")
                else:
                    kept += 1
                    yield Source(str(number), text)
            offset += len(rows)
            if len(rows) < PAGE:
                return


def _check_columns(row: dict[str, Any], needed: list[str]) -> None:
    missing = [name for name in needed if name not in row]
    if missing:
        raise SourceError("missing_column", f"no column {', '.join(missing)}; there are {', '.join(row)}")


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    text = source.data
    if inputs["output_format"] == "messages_user_only":
        return [Draft({"messages": [{"role": "user", "content": text}]})]
    if inputs["output_format"] == "prompt_completion":
        return [Draft({"prompt": text, "completion": ""})]
    return [Draft({"text": text})]


def stored_format(inputs: Inputs) -> str:
    return "messages" if inputs["output_format"] == "messages_user_only" else str(inputs["output_format"])


TEMPLATE = Template(
    id="hf_dataset_import",
    label="Hugging Face data set",
    description="Reads a text column of a data set on the Hugging Face hub, page by page.",
    output_format="text",
    fields=(
        Field("hf_id", "text", "Data set", hint="owner/name", required=True),
        Field("config", "text", "Configuration", hint="empty: the first that has the split"),
        Field("split", "text", "Split", default="train"),
        Field("text_column", "text", "Text column", default="text"),
        Field("label_column", "text", "Label column"),
        Field("label_filter", "text", "Keep only this label"),
        Field("max_rows", "number", "Most rows", hint="0: all", default=1000, minimum=0, missing=0),
        Field("min_chars", "number", "Shortest text, characters", default=200, minimum=0, missing=0),
        Field("output_format", "select", "Format", default="text", choices=FORMATS),
    ),
    sources=sources,
    build=build,
    check="types",
    prompts_only=lambda inputs: inputs["output_format"] != "text",
    format_for=stored_format,
)
