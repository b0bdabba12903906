"""Blind comparisons: people's votes between two models, and the tally of each pair."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Q, QuerySet

from mlxplatform.http.fields import Field, invalid, read
from mlxplatform.training.models import BlindVote

_FIELDS = (
    Field("models", "names", required=True, doc="The two that answered"),
    Field("winner", "text", high=255, doc="The better one; null for neither"),
    Field("question", "text", high=20_000, doc="What was asked"),
)


def vote(body: dict[str, Any], *, project: str, created_by: str) -> BlindVote:
    """Count one vote.

    Raises:
        Refusal: 400 not two different names, or a winner that is none of them.
    """
    said = read(body, _FIELDS)
    names = sorted(said["models"])
    if len(names) != 2 or any(len(name) > 255 for name in names):
        raise invalid("models", "models must be the two different names that answered.")
    if said["winner"] is not None and said["winner"] not in names:
        raise invalid("winner", "winner must be one of models, or null for neither.")
    return BlindVote.objects.create(
        project=project,
        first=names[0],
        second=names[1],
        winner=said["winner"] or "",
        question=said["question"] or "",
        created_by=created_by,
    )


def tallies(project: str | None, model: str = "") -> list[dict[str, Any]]:
    """Wins of each pair, most votes first; with ``model``, only the pairs it is in."""
    votes: QuerySet[BlindVote] = BlindVote.objects.order_by()
    if project is not None:
        votes = votes.filter(project=project)
    if model:
        votes = votes.filter(Q(first=model) | Q(second=model))
    counted = votes.values("first", "second", "winner").annotate(votes=Count("id"))
    pairs: dict[tuple[str, str], dict[str, int]] = {}
    for row in counted:
        pairs.setdefault((row["first"], row["second"]), {})[row["winner"]] = row["votes"]
    shown = [
        {"models": [first, second], "wins": [wins.get(first, 0), wins.get(second, 0)], "ties": wins.get("", 0)}
        for (first, second), wins in pairs.items()
    ]
    return sorted(shown, key=lambda pair: (-sum(pair["wins"]) - pair["ties"], pair["models"]))
