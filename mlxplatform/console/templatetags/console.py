"""Template tags of the console: the navigation, sizes and ages a person can read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template
from django.urls import reverse
from django.utils import timezone

from mlxplatform.accounts.scopes import grants
from mlxplatform.console.navigation import SECTIONS

register = template.Library()

_UNITS = ("B", "KB", "MB", "GB", "TB")


@register.inclusion_tag("console/navigation.html", takes_context=True)
def navigation(context: template.Context) -> dict[str, Any]:
    path = context["request"].path
    held = tuple(context["request"].identity.scopes)
    sections = []
    for section in SECTIONS:
        links = []
        for link in section.links:
            if not grants(held, link.scope):
                continue
            url = reverse(link.route)
            links.append({"label": link.label, "url": url, "current": path == url})
        if links:
            sections.append({"name": section.name, "links": links})
    return {"sections": sections}


@register.filter
def size(value: Any) -> str:
    """Bytes as a person reads them: 1536 is 1.5 KB."""
    if value in (None, ""):
        return "–"
    amount = float(value)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return _together(f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}")
        amount /= 1024
    return ""


@register.filter
def age(value: datetime | None) -> str:
    """How long ago, in one unit: 90 seconds is 1 min ago."""
    if value is None:
        return "–"
    seconds = (timezone.now() - value).total_seconds()
    suffix = "ago" if seconds >= 0 else "from now"
    seconds = abs(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return _together(f"{int(seconds // length)} {unit} {suffix}")
    return _together(f"{int(seconds)} s {suffix}")


def _together(text: str) -> str:
    """Kept on one line: a narrow column would break a number from its unit."""
    return text.replace(" ", "\u00a0")


@register.filter
def memory_used(memory: dict[str, Any]) -> int:
    """Bytes of a host's budget in use: weights, caches and prompts kept for reuse."""
    return sum(int(memory.get(name) or 0) for name in ("weight_bytes", "kv_bytes", "prefix_bytes"))


@register.filter
def share(value: Any, part: str) -> int:
    return int(float(value) * float(part))


@register.filter
def percent(value: Any) -> str:
    return f"{float(value or 0) * 100:.0f} %"
