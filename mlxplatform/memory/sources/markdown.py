"""Markdown transcripts and notes, one conversation a file (or a zip of files).

Speakers are headings or bold names ("## User", "**Assistant:**"). A file without speakers is a note.
A front matter may give ``id``, ``title`` and ``date``; the file's name is the id otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mlxplatform.memory.sources import Item, Skipped, Turn, imported, instant, unpacked
from mlxplatform.memory.wiki.page import fenced_lines, front_matter_lines

_FILE = re.compile(r"\.(md|markdown|txt)$", re.IGNORECASE)
_SPEAKER = re.compile(
    r"^(?:#{1,6}\s*|\*\*)(user|human|you|me|assistant|ai|chatgpt|claude|model)\b[^\w\n]{0,4}\s*(.*)$", re.IGNORECASE
)
_ROLES = {"user": "user", "human": "user", "you": "user", "me": "user"}


def read(raw: bytes, name: str) -> Iterator[Item]:
    for file_name, content in unpacked(raw, name, _FILE):
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            yield Skipped(file_name, "not valid UTF-8")
            continue
        lines = text.splitlines(keepends=True)
        front = front_matter_lines(lines)
        pairs = (line.partition(":") for line in lines[1 : max(front - 1, 0)])
        facts = {key.strip().lower(): value.strip() for key, _, value in pairs}
        body = "".join(lines[front:])
        turns = _turns(body)
        title = facts.get("title") or next(
            (line[2:].strip() for line, fenced in fenced_lines(body) if not fenced and line.startswith("# ")), ""
        )
        yield imported(facts.get("id") or file_name, title, instant(facts.get("date") or facts.get("updated", "")), turns)


def _turns(body: str) -> list[Turn]:
    turns: list[tuple[str, list[str]]] = [("note", [])]
    for line, fenced in fenced_lines(body):
        found = None if fenced else _SPEAKER.match(line)
        if found:
            role = _ROLES.get(found[1].lower(), "assistant")
            turns.append((role, [found[2].strip(" *:") + "\n"] if found[2].strip(" *:") else []))
        else:
            turns[-1][1].append(line)
    if len(turns) > 1:
        turns = turns[1:]
    return [Turn(role, "".join(lines)) for role, lines in turns]
