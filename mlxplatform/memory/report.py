"""What a run did and why, told so that "nothing" has a reason too. Plain data, stored with the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Refusals kept word for word; the rest is counted.
REFUSALS_KEPT = 200


@dataclass
class StageReport:
    stage: str
    read: int = 0
    calls: int = 0
    #: Tokens the model wrote for them.
    tokens: int = 0
    proposed: int = 0
    #: Counts by name, e.g. {"captured": 3}.
    counts: dict[str, int] = field(default_factory=dict)
    refused: list[dict[str, str]] = field(default_factory=list)
    refused_more: int = 0
    #: Why the stage did nothing, or what it left for later.
    because: str = ""

    def count(self, name: str, by: int = 1) -> None:
        if by:
            self.counts[name] = self.counts.get(name, 0) + by

    def refuse(self, subject: str, reason: str) -> None:
        if len(self.refused) < REFUSALS_KEPT:
            self.refused.append({"subject": subject, "reason": reason})
        else:
            self.refused_more += 1

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value or name == "stage"}


@dataclass
class Report:
    stages: list[StageReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    held: str = ""
    score: float | None = None

    def stage(self, name: str) -> StageReport:
        found = next((stage for stage in self.stages if stage.stage == name), None)
        if found is None:
            found = StageReport(name)
            self.stages.append(found)
        return found

    @property
    def calls(self) -> int:
        return sum(stage.calls for stage in self.stages)

    @property
    def proposed(self) -> int:
        return sum(stage.proposed for stage in self.stages)

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"stages": [stage.as_json() for stage in self.stages], "model_calls": self.calls}
        told |= {"proposed": self.proposed, "commits": self.commits, "notes": self.notes}
        if self.held:
            told["held"] = self.held
        if self.score is not None:
            told["score"] = self.score
        if not self.proposed and not self.commits:
            told["nothing_because"] = self.nothing_because()
        return told

    def nothing_because(self) -> str:
        reasons = [f"{stage.stage}: {stage.because}" for stage in self.stages if stage.because]
        refused = sum(len(stage.refused) + stage.refused_more for stage in self.stages)
        if refused:
            reasons.append(f"{refused} drafts did not pass the checks; see refused")
        return "; ".join(reasons) or "there was nothing new to read"
