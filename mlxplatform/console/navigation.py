"""The console's map: every page a person can reach, in sections. A feature adds one line here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    label: str
    route: str


@dataclass(frozen=True)
class Section:
    name: str
    links: tuple[Link, ...]


SECTIONS: tuple[Section, ...] = (
    Section("Work", (Link("Home", "console:home"), Link("Chat", "console:chat"), Link("Jobs", "console:jobs"))),
    Section(
        "Data",
        (
            Link("Datasets", "console:datasets"),
            Link("New dataset", "console:dataset-new"),
            Link("Batches", "console:batches"),
            Link("Files", "console:files"),
        ),
    ),
    Section(
        "Models",
        (Link("Library", "console:models"), Link("Fine-tune", "console:finetune"), Link("Quantize", "console:quantize")),
    ),
    Section("Memory", (Link("Wiki and review", "console:memory"),)),
    Section("Clock", (Link("Schedules", "console:schedules"),)),
    Section("House", (Link("Usage", "console:usage"), Link("Keys", "console:keys"), Link("Raw rows", "admin:index"))),
)
