"""Python functions and classes cut in two: complete the rest. No model."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from mlxplatform.datasets.inputs import bad
from mlxplatform.datasets.roots import UnknownFolder, folder_in_roots
from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, SourceError, Template

#: Shortest piece of code worth cutting, characters; larger files than this are generated or data.
MIN_CHARS, MAX_FILE_BYTES = 30, 2 * 1024 * 1024
#: Where a piece may be cut, and the seed of the places.
CUT_FROM, CUT_TO, CUT_SEED = 0.25, 0.75, 42

_START = re.compile(r"^(?=def |class |async def )", re.MULTILINE)


def pieces(text: str) -> list[str]:
    """The text split before every top-level function or class."""
    return [piece for piece in _START.split(text) if len(piece.strip()) >= MIN_CHARS]


def check_inputs(inputs: Inputs, project: str) -> None:
    try:
        folder_in_roots(inputs["src_dir"])
    except UnknownFolder as error:
        raise bad("inputs.src_dir", str(error)) from None


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    try:
        root = folder_in_roots(inputs["src_dir"])
    except UnknownFolder as error:
        raise SourceError("not_a_directory", str(error)) from None
    cutter = random.Random(CUT_SEED)
    made = 0
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not path.is_file() or not path.resolve().is_relative_to(root):
            continue
        if path.stat().st_size > MAX_FILE_BYTES:
            yield Drop("file_too_large", name)
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            yield Drop("unreadable_file", name)
            continue
        for piece in pieces(text):
            if made >= inputs["max_pairs"]:
                return
            made += 1
            cut = cutter.randint(int(len(piece) * CUT_FROM), int(len(piece) * CUT_TO))
            yield Source(str(made), (piece[:cut], piece[cut:]))


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    start, rest = source.data
    return [Draft({"prompt": start, "completion": rest})]


TEMPLATE = Template(
    id="code_completion",
    label="Code completion",
    description="Cuts the functions and classes of Python files in a folder into beginnings and completions.",
    output_format="prompt_completion",
    fields=(
        Field("src_dir", "text", "Folder with Python files", required=True),
        Field("max_pairs", "number", "Most pairs", default=500, minimum=1, maximum=1_000_000),
    ),
    sources=sources,
    build=build,
    check_inputs=check_inputs,
)
