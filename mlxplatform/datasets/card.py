"""The dataset card: what a reader of the files needs to know, as Markdown with the hub's front matter."""

from __future__ import annotations

import json
import re
from typing import Any

from mlxplatform.datasets.models import DatasetVersion

#: Sizes the hub knows, by the first row count that is too large for each.
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"))

#: Characters that JSON leaves as they are and YAML does not read as themselves.
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def card(version: DatasetVersion, meta: dict[str, Any], template: str) -> str:
    counts = version.counts
    size = next((name for limit, name in SIZES if counts.get("accepted", 0) < limit), "10M<n<100M")
    lines = [
        "---",
        f"pretty_name: {_quoted(version.dataset.name)}",
        f"size_categories:\n- {size}",
        "tags:",
        *(
            f"- {_quoted(tag)}"  # quoted: a tag may read as a number, a list or yes and no
            for tag in ["synthetic" if version.report.get("model") else "converted", "mlx-platform", *version.dataset.tags]
        ),
        "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train.jsonl",
        *(["  - split: validation\n    path: valid.jsonl"] if counts.get("valid") else []),
        *(["  - split: test\n    path: test.jsonl"] if counts.get("test") else []),
        "---",
        "",
        f"# {_line(version.dataset.name)}",
        "",
        *([version.dataset.description, ""] if version.dataset.description else []),
        f"Version {version.number}, format `{version.output_format}`, made by {template}.",
        "",
        "| rows | |",
        "|---|---|",
        *(f"| {name} | {counts[name]} |" for name in ("train", "valid", "test") if name in counts),
        *(f"| dropped: {_line(reason).replace('|', '/')} | {number} |" for reason, number in counts.get("dropped", {}).items()),
        "",
    ]
    if version.notes:
        lines += [*(f"- {_line(note)}" for note in version.notes), ""]
    recipe = {key: meta[key] for key in ("template", "model", "options", "inputs") if meta.get(key)}
    told = json.dumps(recipe, ensure_ascii=False, indent=2)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", told))])  # inputs may have fences of their own
    lines += ["## How it was made", "", f"{fence}json", told, fence, ""]
    leak = version.report.get("leaks")
    if leak:
        text = f"{leak['same_row']} validation rows repeat a training row; {leak['same_question']} repeat a question."
        lines += ["## Checks", "", text, ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """A YAML scalar that reads as the text: JSON's, with what YAML takes for the end of a line, or not at all, escaped."""
    return _UNSAFE.sub(lambda mark: f"\\U{ord(mark[0]):08x}", json.dumps(text, ensure_ascii=False))


def _line(text: str) -> str:
    return " ".join(text.split())
