"""The index of a vault: pages, sections, links, and full-text search over them. Derived; the Markdown wins.

Full text is SQLite's FTS5 or PostgreSQL's text search; this module and one migration are all that know which.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import IntegrityError, connection, transaction

from mlxplatform.memory.models import Page, PageLink, Section, Vault
from mlxplatform.memory.vault import ARTICLES, REFERENCE, UnsafeName, Wiki
from mlxplatform.memory.wiki import edits, wording
from mlxplatform.memory.wiki.linking import linked_stems
from mlxplatform.memory.wiki.page import bare, info_of, lead_of, parse, prose, sentences, title_of

#: Words of a query that count; more only narrow it to nothing.
QUERY_WORDS = 12
_WORD = re.compile(r"[^\W_]+")
#: Weights of page title, section title and text.
_SQLITE = """
    SELECT p.folder, p.stem, p.title, s.title, snippet(memory_section_fts, 2, '', '', ' … ', 24),
           -bm25(memory_section_fts, 4.0, 2.0, 1.0) AS score
    FROM memory_section_fts
    JOIN memory_section s ON s.id = memory_section_fts.rowid JOIN memory_page p ON p.id = s.page_id
    WHERE memory_section_fts MATCH %s AND p.vault_id = %s {folder}
    ORDER BY score DESC, s.id LIMIT %s
"""
_POSTGRES = """
    SELECT p.folder, p.stem, p.title, s.title,
           ts_headline('simple', s.text, q, 'StartSel="",StopSel="",MaxWords=24,MinWords=8'),
           ts_rank(s.words, q) AS score
    FROM memory_section s JOIN memory_page p ON p.id = s.page_id, to_tsquery('simple', %s) q
    WHERE s.words @@ q AND p.vault_id = %s {folder}
    ORDER BY score DESC, s.id LIMIT %s
"""
_POSTGRES_WORDS = """
    UPDATE memory_section SET words = setweight(to_tsvector('simple', %s), 'A') || setweight(to_tsvector('simple', %s), 'B')
        || to_tsvector('simple', %s) WHERE id = %s
"""


@dataclass(frozen=True)
class Hit:
    folder: str
    stem: str
    title: str
    section: str
    snippet: str
    score: float


def refresh(vault: Vault, wiki: Wiki) -> int:
    """Bring the index in line with the files; returns how many pages had changed."""
    changed = 0
    for folder in (ARTICLES, REFERENCE):
        known = dict(vault.pages.filter(folder=folder).values_list("stem", "digest"))
        present = wiki.stems(folder)
        for stem in present:
            try:
                text = wiki.read(stem, folder)
            except UnsafeName:
                continue
            if known.get(stem) != edits.digest(text):
                update_page(vault, stem, text, folder)
                changed += 1
        for stem in known.keys() - set(present):
            update_page(vault, stem, None, folder)
            changed += 1
    return changed


#: What the folders of a vault looked like when this process last made sure of its index: newest change and number of files.
_seen: dict[int, tuple[int, int]] = {}


def keep_current(vault: Vault, wiki: Wiki) -> None:
    """Index what was edited since, in whatever editor, before somebody reads. A look costs one stat a page."""
    look = _look(wiki)
    if _seen.get(vault.pk) == look:
        return
    try:
        refresh(vault, wiki)
    except IntegrityError:
        return  # Another process indexes the same page right now; the next reader looks again.
    _seen[vault.pk] = look


def _look(wiki: Wiki) -> tuple[int, int]:
    newest = count = 0
    for folder in (ARTICLES, REFERENCE):
        try:
            newest = max(newest, (wiki.root / folder).stat().st_mtime_ns)
            with os.scandir(wiki.root / folder) as entries:
                for entry in entries:
                    newest, count = max(newest, entry.stat(follow_symlinks=False).st_mtime_ns), count + 1
        except OSError:
            continue
    return newest, count


def update_page(vault: Vault, stem: str, text: str | None, folder: str = ARTICLES) -> None:
    """Index one page as it stands now, or forget it (None)."""
    with transaction.atomic():
        # One at a time: a reader that indexes a page must not make the run that wrote it fail.
        Vault.objects.select_for_update().filter(pk=vault.pk).first()
        Page.objects.filter(vault=vault, folder=folder, stem=stem).delete()
        if text is None:
            return
        parsed = parse(text)
        lead = lead_of(parsed)
        said = sentences(lead)
        info = info_of(text)
        page = Page.objects.create(
            vault=vault,
            folder=folder,
            stem=stem,
            title=(title_of(text) or stem.replace("_", " "))[:120],
            kind=info.get("kind", "")[:40],
            summary=wording.plain(bare(said[0]), 400) if said else "",
            info=info,
            digest=edits.digest(text),
        )
        parts = [("", lead), *((section.title, section.body) for section in parsed.sections)]
        rows = [
            Section(page=page, place=place, title=title[:200], text=plain)
            for place, (title, body) in enumerate(parts)
            if (plain := prose(body).strip())
        ]
        Section.objects.bulk_create(rows)
        PageLink.objects.bulk_create([PageLink(page=page, target=target[:200]) for target in linked_stems(text)])
        _index([(row.pk, page.title, row.title, row.text) for row in rows])


def forget_words(section: int) -> None:
    """Take a section that is being deleted, by whatever way, out of the full-text table."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM memory_section_fts WHERE rowid = %s", [section])


def _index(rows: Sequence[tuple[int, str, str, str]]) -> None:
    if not rows:
        return
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.executemany("INSERT INTO memory_section_fts(rowid, page, title, text) VALUES (%s, %s, %s, %s)", rows)
        else:
            cursor.executemany(_POSTGRES_WORDS, [(*map(unaccented, parts), pk) for pk, *parts in rows])


def unaccented(text: str) -> str:
    """Letters without their marks. SQLite's tokenizer does this by itself, PostgreSQL's needs it done."""
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))


def search(vault: Vault, query: str, folder: str = "", limit: int = 50) -> list[Hit]:
    """Sections by relevance: those with all the words first, those with some of them when there are none."""
    words = list(dict.fromkeys(word for word in _WORD.findall(query) if word))[:QUERY_WORDS]
    if not words:
        return []
    found = _find(vault, words, " AND ", folder, limit)
    return found or (_find(vault, words, " OR ", folder, limit) if len(words) > 1 else [])


def _find(vault: Vault, words: Sequence[str], join: str, folder: str, limit: int) -> list[Hit]:
    sqlite = connection.vendor == "sqlite"
    if sqlite:
        match = join.join(f'"{word}"*' for word in words)
    else:
        match = (" & " if join == " AND " else " | ").join(f"{unaccented(word)}:*" for word in words)
    sql = (_SQLITE if sqlite else _POSTGRES).format(folder="AND p.folder = %s" if folder else "")
    params: list[str | int] = [match, vault.pk, *([folder] if folder else []), limit]
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return [Hit(row[0], row[1], row[2], row[3], row[4], float(row[5])) for row in cursor.fetchall()]
