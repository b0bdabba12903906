"""The job that imports: one pass from the source into the version's files, then the split, then publication.

Bad rows are collected with their places; unless the order said to skip them, any of them fails the import and
nothing is published. Rows of different forms are unified as conversations when all can be.
"""

from __future__ import annotations

import array
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from mlxplatform.datasets import convert, finishing, formats, lifecycle, rowsource, rowtext, shape
from mlxplatform.datasets import publish as publishing
from mlxplatform.datasets.card import card
from mlxplatform.datasets.filters.near import NearDuplicates
from mlxplatform.datasets.imports.items import Problem, Unreadable
from mlxplatform.datasets.imports.order import ImportOptions
from mlxplatform.datasets.imports.reading import Origin, origin_of, rows
from mlxplatform.datasets.leaks import leaks
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.datasets.split import split_at
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.context import JobContext, JobFailed, OwnershipLost
from mlxplatform.jobs.models import Job

#: Problems kept with their places; all are counted.
KEPT_PROBLEMS = 200
#: Problems named in the job's error.
SHOWN_PROBLEMS = 20
#: Columns that were left out, of those the report names, and sets of them that are counted.
SHOWN_COLUMNS, COUNTED_SETS = 20, 1_000
#: Rows between looks at the job's wishes, and between progress events.
CHECK_ROWS, TELL_ROWS = 1_000, 20_000
#: Bytes of lines gathered before they are written.
GATHERED = 256 * 1024

#: Rows up to which the parts are compared with each other: a second for each 100,000.
LEAK_ROWS = 100_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass
class Tally:
    """What has been read so far."""

    read: int = 0
    used: int = 0
    bad: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    left_out: Counter[frozenset[str]] = field(default_factory=Counter)
    first_of: dict[str, str] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)

    def leave_out(self, columns: frozenset[str]) -> None:
        """Count columns without a use, together as they come; of a mixture that always has new ones, the first."""
        if columns in self.left_out or len(self.left_out) < COUNTED_SETS:
            self.left_out[columns] += 1

    def note(self, problem: Problem) -> None:
        self.bad += 1
        self.dropped[problem.code] += 1
        if len(self.problems) < KEPT_PROBLEMS:
            self.problems.append(problem)


def _as_chat(row: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A row among conversations as one of them, or why it cannot be one."""
    if "rejected" in row:
        return row, "a preference among conversations, whose rejected answer would be lost"
    chat = formats.to_messages(row)
    if chat is None:
        return row, "plain text among conversations"
    field, why = shape.problem(chat)
    return chat, f"as a conversation, {field} {why}" if why else ""


class Mixed(Exception):
    """The rows are of more than one of our formats."""


class Part:
    """Rows of one split on their way into a file, with the byte offset of the first row of every block.

    Lines are gathered before they are written: a hash and a write for each would cost as much as reading it.
    """

    def __init__(self, out: publishing.Counted) -> None:
        self.out = out
        self.blocks = array.array("Q")
        self.rows = 0
        self._gathered: list[bytes] = []
        self._bytes = 0

    def add(self, line: bytes) -> None:
        if self.rows % rowsource.BLOCK == 0:
            self.flush()
            self.blocks.append(self.out.bytes)
        self.rows += 1
        self._gathered.append(line)
        self._bytes += len(line)
        if self._bytes > GATHERED:
            self.flush()

    def flush(self) -> None:
        if self._gathered:
            self.out.write(b"".join(self._gathered), rows=len(self._gathered))
            self._gathered.clear()
            self._bytes = 0


def run(ctx: JobContext) -> dict[str, Any]:
    """Runner of the kind ``dataset_import``."""
    version = lifecycle.begin(ctx.job_id)
    if version.state == DatasetVersion.State.READY:
        return lifecycle.result_of(version)
    options = msgspec.convert(version.options, ImportOptions)
    ctx.stage("starting", 0.05, f"reading {options.filename or options.reference}")
    try:
        try:
            origin = origin_of(options, ctx.project)
            return Import(ctx, version, options, origin, unify=False).make()
        except Mixed:
            ctx.log("The rows are of different forms; reading again to unify them as conversations.")
            return Import(ctx, version, options, origin, unify=True).make()
    except (Unreadable, Refusal) as error:
        raise JobFailed(error.code, error.message) from None


class Import:
    """One pass. ``unify`` turns every row into a conversation."""

    def __init__(self, ctx: JobContext, version: DatasetVersion, options: ImportOptions, origin: Origin, *, unify: bool) -> None:
        self.ctx = ctx
        self.version = version
        self.options = options
        self.origin = origin
        self.unify = unify
        self.tally = Tally()
        self.seen: set[bytes] = set()
        self.near = NearDuplicates(options.near_duplicates) if options.near_duplicates is not None else None
        self.started = time.monotonic()

    def make(self) -> dict[str, Any]:
        with publishing.Publication(self.version.dataset_id, self.version.number, self.ctx.fence) as publication:
            parts = self._fill(publication)
            self._refuse_if_bad()
            self._divide(publication, parts)
            self._look_for_leaks(publication)
            self._finish(publication)
        self.ctx.stage("done", 1.0, finishing.sentence(self.version))
        return lifecycle.result_of(self.version)

    def _fill(self, publication: publishing.Publication) -> dict[str, Part]:
        parts: dict[str, Part] = {}
        for split, line in self._rows():
            part = parts.get(split)
            if part is None:
                part = parts[split] = Part(publication.file(f"{split or 'all'}.jsonl"))
            part.add(line)
        for part in parts.values():
            part.flush()
        return parts

    def _rows(self) -> Iterator[tuple[str, bytes]]:
        """(split, line) of every row that is used."""
        tally = self.tally
        formats: set[str] = set()
        compared = self.unify or self.options.distinct or self.near is not None
        for item in rows(self.origin, self.options, self.ctx.project, as_rows=compared):
            tally.read += 1
            if tally.read % CHECK_ROWS == 0:
                self.ctx.check()
                if tally.read % TELL_ROWS == 0:
                    self._tell()
            if isinstance(item, Problem):
                tally.note(item)
                continue
            split, name, where, form, row, left_out = item
            if form not in tally.first_of:
                tally.first_of[form] = f"{name} {where}".strip()
                formats.add(convert.BECOMES.get(form, "messages"))
                if len(formats) > 1 and not self.unify:
                    raise Mixed
            tally.forms[form] += 1
            if left_out:
                tally.leave_out(left_out)
            if isinstance(row, bytes):
                tally.used += 1
                yield split, row
                continue
            if self.unify:
                chat, why = _as_chat(row)
                if why:
                    tally.note(Problem(where, "mixed_forms", why, file=name))
                    continue
                row = chat
            if self._repeats(row):
                continue
            tally.used += 1
            yield split, _encode(row) + b"\n"
        self.format = "messages" if self.unify else next(iter(formats), "messages")

    def _repeats(self, row: dict[str, Any]) -> bool:
        if self.options.distinct:
            digest = rowtext.digest(row)
            if digest in self.seen:
                self.tally.dropped["duplicate"] += 1
                return True
            self.seen.add(digest)
        if self.near is not None and self.near.like(row) is not None:
            self.tally.dropped["near_duplicate"] += 1
            return True
        return False

    def _tell(self) -> None:
        tally = self.tally
        rate = tally.read / max(time.monotonic() - self.started, 1e-3)
        message = f"{tally.used} rows read"
        self.ctx.stage("reading", 0.4, message, accepted=tally.used, dropped=dict(tally.dropped), rows_per_s=round(rate))

    def _refuse_if_bad(self) -> None:
        tally = self.tally
        report = {
            "read": tally.read,
            "used": tally.used,
            "forms": dict(tally.forms),
            "problems": [{"message": str(problem), **asdict(problem)} for problem in tally.problems],
            "bad_rows": tally.bad,
            "source": self._source(),
            "left_out": self._left_out(),
        }
        self.version.report = report
        DatasetVersion.objects.filter(pk=self.version.pk).update(report=report)
        if tally.bad and self.options.on_bad_rows == "refuse":
            raise JobFailed("bad_rows", self._sentence())
        if not tally.used:
            raise JobFailed("zero_rows", self._sentence() if tally.bad else "The source has no rows.")

    def _left_out(self) -> dict[str, int]:
        each: Counter[str] = Counter()
        for columns, number in self.tally.left_out.items():
            each.update(dict.fromkeys(columns, number))
        return {convert.name_of(name): number for name, number in each.most_common(SHOWN_COLUMNS)}

    def _source(self) -> dict[str, str]:
        """Where the rows come from, for people and for another import of the same."""
        options = self.options
        about = {options.source: options.filename or options.reference}
        return {**about, **({"revision": self.origin.revision} if self.origin.revision else {})}

    def _sentence(self) -> str:
        tally = self.tally
        shown = "; ".join(map(str, tally.problems[:SHOWN_PROBLEMS]))
        more = f"; and {tally.bad - SHOWN_PROBLEMS} more" if tally.bad > SHOWN_PROBLEMS else ""
        mixed = ""
        if len(tally.forms) > 1:
            counted = ", ".join(
                f"{number} {form} (first at {tally.first_of[form]})" for form, number in tally.forms.most_common()
            )
            mixed = f" The rows are of several forms: {counted}."
        return f"{tally.bad} of {tally.read} rows cannot be used, so nothing was imported: {shown}{more}.{mixed}"

    def _divide(self, publication: publishing.Publication, parts: dict[str, Part]) -> None:
        """Cut undivided rows into train and valid, and write the index of all row files."""
        undivided = parts.pop("", None)
        if undivided is not None:
            held_out = "valid" in parts or "test" in parts
            cut = undivided.rows if held_out else split_at(undivided.rows, self.options.valid_fraction)
            parts["train"], valid = Part(publication.file("train.jsonl")), Part(publication.file("valid.jsonl"))
            parts.setdefault("valid", valid)
            for number, line in enumerate(publication.drain_lines("all.jsonl")):
                (parts["train"] if number < cut else valid).add(line)
        for name in ("train", "valid"):
            if name not in parts:
                parts[name] = Part(publication.file(f"{name}.jsonl"))
        index = publication.file(rowsource.INDEX)
        for name in rowsource.ROW_FILES:
            if (part := parts.get(name.removesuffix(".jsonl"))) is not None:
                part.flush()
                index.write(part.blocks.tobytes())
        self.parts = {name: part.rows for name, part in parts.items()}

    def _look_for_leaks(self, publication: publishing.Publication) -> None:
        """Held-out rows that are among the training rows too; not looked for where that would take the import's time."""
        held_out = [name for name in ("valid", "test") if self.parts.get(name)]
        if not held_out or self.tally.used > LEAK_ROWS:
            return
        train = (_decode(line) for line in publication.lines("train.jsonl"))
        others = (_decode(line) for name in held_out for line in publication.lines(f"{name}.jsonl"))
        self.version.report["leaks"] = leaks(train, others)

    def _finish(self, publication: publishing.Publication) -> None:
        version, tally = self.version, self.tally
        version.output_format = self.format
        version.counts = {
            "made": tally.read,
            "accepted": tally.used,
            "train": self.parts["train"],
            "valid": self.parts["valid"],
            **({"test": self.parts["test"]} if "test" in self.parts else {}),
            "dropped": dict(tally.dropped.most_common()),
        }
        version.notes = [finishing.NO_VALIDATION] if tally.used == 1 else []
        if tally.bad:
            version.notes.append(f"{tally.bad} of {tally.read} rows could not be used and were skipped.")
        if tally.left_out:
            named = ", ".join(f"{name} ({number} rows)" for name, number in self._left_out().items())
            version.notes.append(f"Columns that no training format uses were left out: {named}.")
        version.report["seconds"] = round(time.monotonic() - self.started, 2)
        self.ctx.check()
        meta = finishing.meta_of(version)
        publication.file("README.md").write(card(version, meta, "import").encode("utf-8", "replace"))
        published = publication.finish(meta)
        with transaction.atomic():
            if not Job.objects.select_for_update().filter(pk=self.ctx.job_id, fence=self.ctx.fence).exists():
                raise OwnershipLost(self.ctx.job_id)
            version.files, version.location = published.files, published.location
            version.state, version.ready_at = DatasetVersion.State.READY, timezone.now()
            version.save()
        publishing.remove_leftovers(version.dataset_id, version.number, version.location)
