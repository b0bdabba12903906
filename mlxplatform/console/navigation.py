"""The console's map: every page a person can reach, in sections. A feature adds one line here."""

from __future__ import annotations

from dataclasses import dataclass

from mlxplatform.accounts.scopes import ADMIN, INFERENCE, READ, WRITE


@dataclass(frozen=True)
class Link:
    """One page; ``scope`` is what its view asks for, so that nobody is shown a door that stays shut."""

    label: str
    route: str
    scope: str = READ


@dataclass(frozen=True)
class Section:
    name: str
    links: tuple[Link, ...]


SECTIONS: tuple[Section, ...] = (
    Section("Work", (Link("Home", "console:home"), Link("Chat", "console:chat", INFERENCE), Link("Jobs", "console:jobs"))),
    Section(
        "Data",
        (
            Link("Datasets", "console:datasets"),
            Link("New dataset", "console:dataset-new", WRITE),
            Link("Batches", "console:batches"),
            Link("Files", "console:files"),
        ),
    ),
    Section(
        "Models",
        (
            Link("Library", "console:models"),
            Link("Find models", "console:hub"),
            Link("Fine-tune", "console:finetune", WRITE),
            Link("Compare runs", "console:runs"),
            Link("Quantize", "console:quantize", WRITE),
            Link("Compare quality", "console:reports"),
        ),
    ),
    Section("Memory", (Link("Wiki and review", "console:memory"),)),
    Section("Clock", (Link("Schedules", "console:schedules"),)),
    Section(
        "House",
        (
            Link("Usage", "console:usage"),
            Link("Data and upkeep", "console:house"),
            Link("Keys", "console:keys", ADMIN),
            Link("People", "console:people", ADMIN),
            Link("Raw rows", "admin:index", ADMIN),
        ),
    ),
)
