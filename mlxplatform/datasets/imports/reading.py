"""Rows of a source in our formats: opened, mapped, converted, checked. Problems keep their file and place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from mlxplatform.datasets import convert, hub, roots, shape
from mlxplatform.datasets.imports.items import Problem, Unreadable
from mlxplatform.datasets.imports.opening import format_of, items, open_path, split_of, unpacked
from mlxplatform.datasets.imports.order import ImportOptions
from mlxplatform.datasets.imports.quick import QuickReader, QuickRow
from mlxplatform.files import service as files

#: Endings looked for in a folder.
READABLE = (
    ".jsonl",
    ".ndjson",
    ".json",
    ".csv",
    ".tsv",
    ".parquet",
    ".arrow",
    ".jsonl.gz",
    ".ndjson.gz",
    ".json.gz",
    ".csv.gz",
    ".tsv.gz",
)
#: Files of a folder that describe and are no data.
NO_DATA = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "meta.json"})


class Good(NamedTuple):
    """A usable row with its split (or ""), file, place and form: converted, or already the line our file gets."""

    split: str
    name: str
    where: str
    form: str
    row: dict[str, Any] | bytes
    #: Keys of the source's row that no training format uses.
    left_out: frozenset[str] = frozenset()


Read = Good | Problem


@dataclass(frozen=True)
class Origin:
    """The files of a source with the names shown to people (without a path: the uploaded file), and the commit they are of."""

    files: list[tuple[str, Path | None]]
    revision: str = ""


def origin_of(options: ImportOptions, project: str) -> Origin:
    """Raises Unreadable: nothing readable there."""
    if options.source == "file":
        return Origin([(options.filename, None)])
    if options.source == "hub":
        found = _downloaded(options, project)
        # A snapshot is a folder of links into the hub client's own store of this data set.
        return Origin(_files_in(found, [found.parent.parent]), found.name)
    found = _named(options.reference)
    return Origin([(found.name, found)] if found.is_file() else _files_in(found, roots.roots()))


def _files_in(folder: Path, allowed: list[Path]) -> list[tuple[str, Path | None]]:
    """Readable files below the folder; links may lead anywhere within the allowed folders."""
    real = [(path, path.resolve()) for path in sorted(folder.rglob("*")) if path.is_file()]
    inside = [path for path, target in real if any(target.is_relative_to(root) for root in allowed)]
    shown = [(path.relative_to(folder), path) for path in inside if path.name.lower().endswith(READABLE)]
    # Hidden files are never data: what an archive of a Mac leaves beside each file, caches, version control.
    listed = [(name, path) for name, path in shown if name.name not in NO_DATA and not any(p.startswith(".") for p in name.parts)]
    if not listed:
        raise Unreadable("no_files", f"The source holds no file ending in {', '.join(READABLE)}.")
    return [(name.as_posix(), path) for name, path in listed]


def splits_of(names: list[str]) -> list[str]:
    """The split of each file, "" where rows are to be divided: names that give one split for all divide nothing.

    Raises:
        Unreadable: some files name their split and some do not, so that nobody can say what the others are.
    """
    splits = [split_of(name) for name in names]
    if len(set(splits)) < 2:
        return [""] * len(names)
    if "" in splits and "train" in splits:
        unnamed = names[splits.index("")]
        raise Unreadable(
            "mixed_splits", f"Some files name their split and some do not (such as {unnamed}); name it for all or none."
        )
    return splits


def _named(reference: str) -> Path:
    try:
        return roots.entry_in_roots(reference)
    except roots.UnknownFolder as error:
        raise Unreadable("path_not_found", str(error)) from None


def _downloaded(options: ImportOptions, project: str) -> Path:
    try:
        patterns = [f"*{ending}" for ending in READABLE]
        return hub.fetch(options.reference, revision=options.revision, patterns=patterns, project=project).resolve()
    except hub.HubError as error:
        raise Unreadable(error.code, error.message) from None


def rows(origin: Origin, options: ImportOptions, project: str, *, as_rows: bool = False) -> Iterator[Read]:
    """Every row of the source, converted and checked, in order. ``as_rows``: never as a finished line.

    Raises:
        Unreadable: the source or one of its files as a whole.
    """
    quick = None if as_rows or options.columns else QuickReader()
    found = origin.files
    for (name, path), split in zip(found, splits_of([name for name, _ in found]), strict=True):
        with _opened(options, project, path) as stream:
            for item in items(stream, format_of(name, options.format), name, quick):
                if isinstance(item, Problem):
                    yield item
                    continue
                where, row = item
                if isinstance(row, QuickRow):
                    yield Good(split, name, where, row.form, row.line, row.left_out)
                    continue
                read = _read(where, row, options, name, split)
                if quick is not None and isinstance(read, Good):
                    quick.expect(read.form, read.left_out)
                yield read


def _opened(options: ImportOptions, project: str, path: Path | None) -> BinaryIO:
    return open_path(path) if path is not None else unpacked(files.open_blob(files.find(options.reference, project)))


def _read(where: str, row: dict[str, Any], options: ImportOptions, name: str, split: str) -> Read:
    try:
        form, converted = convert.read(mapped(row, options.columns) if options.columns else row)
    except convert.BadRow as error:
        return Problem(where, "bad_value", error.message, file=name, field=error.field)
    field, why = shape.problem(converted)
    if why:
        return Problem(where, "bad_row", why, file=name, field=field)
    return Good(split, name, where, form, converted, frozenset() if options.columns else convert.left_out(row, form))


def mapped(row: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
    """The row under our names. Raises BadRow for a column that is not there."""
    for column in columns.values():
        if column not in row:
            raise convert.BadRow("row", f"has no column {column}; it has {convert.keys_of(row)}")
    named = {target: row[column] for target, column in columns.items()}
    if "assistant" in named or "user" in named:
        messages = [
            {"role": role, "content": named[role]}
            for role in ("system", "user", "assistant")
            if named.get(role) not in (None, "")
        ]
        return {"messages": messages}
    return named
