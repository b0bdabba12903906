"""``manage.py dataset_templates``: the reference page of all templates, as Markdown."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from mlxplatform.datasets.templates.base import Field
from mlxplatform.datasets.templates.registry import TEMPLATES

HEAD = """# Dataset templates

Made by `manage.py dataset_templates`. Fields without a default may be left out unless they are needed. How to order, filter
and preview is in [the guide](../guide/datasets.md).
"""


def reference() -> str:
    parts = [HEAD]
    for template in TEMPLATES.values():
        facts = [f"rows: `{template.output_format}`", "calls the model" if template.needs_llm else "no model"]
        if template.repeatable:
            facts.append("goes on in rounds when `rows` is given")
        if template.pool_limit is not None:
            facts.append(f"drops rows like the pool from ROUGE-L {template.pool_limit:g}")
        parts.append(f"## `{template.id}`\n\n{template.description}\n\n{'; '.join(facts)}.\n")
        parts.append("| field | type | default | |\n|---|---|---|---|")
        parts += [_line(field) for field in template.fields]
        parts.append("")
    return "\n".join(parts)


def _line(field: Field) -> str:
    default = "needed" if field.required else "" if field.default is None else f"`{field.default}`"
    about = field.label
    if field.choices:
        about += f": {', '.join(field.choices)}"
    elif field.minimum is not None or field.maximum is not None:
        about += f", {'' if field.minimum is None else field.minimum} to {'' if field.maximum is None else field.maximum}"
    return f"| `{field.name}` | {field.type} | {default} | {about.replace('|', chr(92) + '|')} |"


class Command(BaseCommand):
    help = "Print docs/reference/templates.md"

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(reference(), ending="")
