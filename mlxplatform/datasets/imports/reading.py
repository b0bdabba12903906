"""Rows of a source in our formats: opened, mapped, converted, checked. Problems keep their file and place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mlxplatform.datasets import convert, roots, shape
from mlxplatform.datasets.imports.opening import Item, Problem, Unreadable, format_of, items, open_path, split_of
from mlxplatform.datasets.imports.order import ImportOptions
from mlxplatform.files import service as files

#: Endings looked for in a folder.
READABLE = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz")
#: Files of a folder that describe and are no data.
NO_DATA = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "meta.json"})
#: Arrow files that the Hugging Face library writes with save_to_disk.
ARROW = ".arrow"

#: (split or "", file name, row's place, form, converted row), or a problem.
Read = tuple[str, str, str, str, dict[str, Any]] | Problem


def files_of(options: ImportOptions, project: str) -> list[tuple[str, Path | None]]:
    """The files of a source with the names shown to people; None is the uploaded file.

    Raises:
        Unreadable: nothing readable there.
    """
    if options.source == "file":
        return [(options.filename, None)]
    found = _downloaded(options) if options.source == "hub" else _named(options.reference)
    if found.is_file():
        return [(found.name, found)]
    inside = [path for path in sorted(found.rglob("*")) if path.is_file() and path.resolve().is_relative_to(found)]
    listed = [path for path in inside if path.name.lower().endswith(READABLE) and path.name not in NO_DATA]
    if not listed:
        if any(path.suffix == ARROW for path in inside):
            raise Unreadable("arrow", "The folder holds Arrow files. Export the data set with to_json or to_parquet first.")
        raise Unreadable("no_files", f"The folder holds no file ending in {', '.join(READABLE)}.")
    return [(path.relative_to(found).as_posix(), path) for path in listed]


def _named(reference: str) -> Path:
    try:
        return roots.entry_in_roots(reference)
    except roots.UnknownFolder as error:
        raise Unreadable("path_not_found", str(error)) from None


def _downloaded(options: ImportOptions) -> Path:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        patterns = [f"*{ending}" for ending in READABLE]
        revision = options.revision or None
        return Path(
            snapshot_download(options.reference, repo_type="dataset", revision=revision, allow_patterns=patterns)
        ).resolve()
    except HFValidationError:
        raise Unreadable("invalid_name", f"{options.reference[:100]} is not the name of a data set (owner/name).") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        raise Unreadable("hub_refused", f"The hub answered {status} for {options.reference[:100]}.") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.HTTPError, OSError):
        raise Unreadable("offline", "The Hugging Face hub cannot be reached from here.") from None


def rows(options: ImportOptions, project: str) -> Iterator[Read]:
    """Every row of the source, converted and checked, in order.

    Raises:
        Unreadable: the source or one of its files as a whole.
    """
    for name, path in files_of(options, project):
        shown = name if options.source != "file" else ""
        split = split_of(name) if options.source != "file" else ""
        with _opened(options, project, path) as stream:
            for item in items(stream, format_of(name, options.format), shown):
                yield _read(item, options, shown, split)


def _opened(options: ImportOptions, project: str, path: Path | None) -> BinaryIO:
    if path is not None:
        return open_path(path)
    stream = files.open_blob(files.find(options.reference, project))
    if stream.peek(2)[:2] == b"\x1f\x8b":  # type: ignore[attr-defined]
        import gzip

        return gzip.open(stream, "rb")  # type: ignore[return-value]
    return stream


def _read(item: Item, options: ImportOptions, name: str, split: str) -> Read:
    if isinstance(item, Problem):
        return item
    where, row = item
    try:
        form, converted = convert.read(mapped(row, options.columns) if options.columns else row)
    except convert.BadRow as error:
        return Problem(where, "bad_value", error.message, file=name, field=error.field)
    field, why = shape.problem(converted)
    if why:
        return Problem(where, "bad_row", why, file=name, field=field)
    return split, name, where, form, converted


def mapped(row: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
    """The row under our names. Raises BadRow for a column that is not there."""
    for column in columns.values():
        if column not in row:
            raise convert.BadRow("row", f"has no column {column}; it has {', '.join(list(map(str, row))[:12])}")
    named = {target: row[column] for target, column in columns.items()}
    if "assistant" in named or "user" in named:
        messages = [
            {"role": role, "content": named[role]}
            for role in ("system", "user", "assistant")
            if named.get(role) not in (None, "")
        ]
        return {"messages": messages}
    return named
