"""Reading a vault: what pages, tools and MCP all offer, as plain data. Nothing here writes or asks a model."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from mlxplatform.inference.contract import Refusal
from mlxplatform.memory import index, names
from mlxplatform.memory.git import GitFailed
from mlxplatform.memory.models import Page, PageLink, Vault
from mlxplatform.memory.vault import ARTICLES, META, REFERENCE, TALK, UnsafeName, Wiki
from mlxplatform.memory.wiki import edits, wording
from mlxplatform.memory.wiki.page import LEAD, bare, definitions, info_of, lead_of, parse, sentences, title_of, word_count

SCOPES = {"all": "", "articles": ARTICLES, "reference": REFERENCE}
FOLDERS = (ARTICLES, REFERENCE, META, TALK)
MODES = ("words", "meaning", "both")
SEARCH_LIMIT, SEARCH_MAX = 50, 200
HISTORY_LIMIT, HISTORY_MAX = 50, 500


def status(vault: Vault) -> dict[str, Any]:
    wiki = Wiki.of(vault)
    last = vault.runs.first()
    counts = {state: vault.changes.filter(state=state).count() for state in ("proposed", "approved", "accepted", "rejected")}
    told: dict[str, Any] = {
        "vault": vault.name,
        "enabled": wiki.exists,
        "policy": vault.policy,
        "pages": vault.pages.filter(folder=ARTICLES).count(),
        "sections": sum(1 for _ in vault.pages.filter(folder=ARTICLES).values_list("sections", flat=True)),
        "conversations": vault.conversations.count(),
        "passages": vault.chunks.count(),
        "changes": counts,
        "last_run": {"id": last.id, "state": last.state, "score": last.score, "started_at": last.started_at.isoformat()}
        if last
        else None,
    }
    if wiki.exists:
        try:
            told["head"] = wiki.git.head()[:12]
            told["obstacle"] = wiki.git.obstacle() or None
        except GitFailed as error:
            told["obstacle"] = error.message
    return told


def pages(vault: Vault, folder: str = ARTICLES) -> list[dict[str, Any]]:
    if folder in (META, TALK):
        return [{"name": stem, "title": stem.replace("_", " "), "folder": folder} for stem in Wiki.of(vault).stems(folder)]
    index.keep_current(vault, Wiki.of(vault))
    found = vault.pages.filter(folder=folder).values("stem", "title", "kind", "summary")
    return [
        {"name": row["stem"], "title": row["title"], "kind": row["kind"], "summary": row["summary"], "folder": folder}
        for row in found
    ]


def category(vault: Vault, name: str) -> list[dict[str, Any]]:
    """Pages that carry a category link of this name, or whose info block gives it as their kind."""
    index.keep_current(vault, Wiki.of(vault))
    wanted = name.strip().replace(" ", "_")
    linked = PageLink.objects.filter(page__vault=vault).filter(
        Q(target__iexact=f"Category:{wanted}") | Q(target__iexact=f":Category:{wanted}")
    )
    found = vault.pages.filter(folder=ARTICLES).filter(Q(kind__iexact=name.strip()) | Q(pk__in=linked.values("page")))
    return [{"name": page.stem, "title": page.title, "summary": page.summary} for page in found]


def search(vault: Vault, query: str, scope: str = "all", limit: int = SEARCH_LIMIT, mode: str = "words") -> list[dict[str, Any]]:
    """Sections by words, by meaning, or by both rankings fused."""
    if scope not in SCOPES:
        raise Refusal(400, "invalid_value", f"scope must be one of {', '.join(SCOPES)}", param="scope")
    if mode not in MODES:
        raise Refusal(400, "invalid_value", f"mode must be one of {', '.join(MODES)}", param="mode")
    index.keep_current(vault, Wiki.of(vault))
    found = index.search(vault, query, SCOPES[scope], limit) if mode != "meaning" else []
    if mode != "words":
        # Late, because it brings numpy, which the web process needs for nothing else.
        from mlxplatform.memory import meaning

        found = meaning.fused(found, meaning.search(vault, query, SCOPES[scope], limit), limit)
    return [
        {
            "name": hit.stem,
            "title": hit.title,
            "folder": hit.folder,
            "section": hit.section,
            "snippet": hit.snippet,
            "score": round(hit.score, 3),
        }
        for hit in found
    ]


def resolve(vault: Vault, name: str) -> str | None:
    """The page a name or alias stands for, or None."""
    index.keep_current(vault, Wiki.of(vault))
    stem = name.strip().replace(" ", "_")
    exact = vault.pages.filter(folder=ARTICLES, stem__iexact=stem).values_list("stem", flat=True).first()
    if exact:
        return exact
    key = names.fold(name)
    redirect = vault.redirects.filter(surface=key).exclude(stem="").values_list("stem", flat=True).first()
    if redirect:
        return redirect
    alias = vault.aliases.filter(key=key).exclude(entity__stem="").values_list("entity__stem", flat=True).first()
    return alias or vault.entities.filter(key=key).exclude(stem="").values_list("stem", flat=True).first()


def text_of(vault: Vault, name: str, folder: str = ARTICLES) -> tuple[str, str]:
    """(stem, text) of a page.

    Raises:
        Refusal: 400 no page's name, 404 there is none.
    """
    wiki = Wiki.of(vault)
    if folder not in FOLDERS:
        raise Refusal(400, "invalid_value", f"folder must be one of {', '.join(FOLDERS)}", param="folder")
    try:
        stem = name.strip().replace(" ", "_")
        text = wiki.read(stem, folder)
        if text is None and folder == ARTICLES and (resolved := resolve(vault, name)):
            stem, text = resolved, wiki.read(resolved, folder)
    except (UnsafeName, ValueError):
        raise Refusal(400, "invalid_value", "this is not the name of a page", param="name") from None
    if text is None:
        raise Refusal(404, "page_not_found", "there is no such page", param="name")
    return stem, text


def toc(text: str) -> list[dict[str, Any]]:
    page = parse(text)
    rows = [{"section": "", "words": word_count(lead_of(page))}]
    return rows + [{"section": section.title, "words": word_count(section.body)} for section in page.sections]


def article(vault: Vault, name: str, folder: str = ARTICLES) -> dict[str, Any]:
    stem, text = text_of(vault, name, folder)
    return {
        "name": stem,
        "title": title_of(text) or stem.replace("_", " "),
        "content": text,
        "digest": edits.digest(text),
        "infobox": info_of(text),
        "lead": lead_of(parse(text)).strip(),
        "structure": toc(text),
        "sources": [{"label": d.label, "text": d.text, "conversations": d.hashes} for d in definitions(text)],
    }


def section(vault: Vault, name: str, title: str) -> dict[str, Any]:
    stem, text = text_of(vault, name)
    page = parse(text)
    if title in ("", LEAD):
        return {"name": stem, "section": "", "content": lead_of(page).strip()}
    found = page.section(title)
    if found is None:
        titles = ", ".join(s.title for s in page.sections)
        raise Refusal(404, "section_not_found", f"this page has no such section; it has: {titles}", param="section")
    return {"name": stem, "section": found.title, "content": found.body.strip()}


def links(vault: Vault, name: str) -> dict[str, Any]:
    index.keep_current(vault, Wiki.of(vault))
    stem, _ = text_of(vault, name)
    page = Page.objects.filter(vault=vault, folder=ARTICLES, stem=stem).first()
    known = set(vault.pages.filter(folder=ARTICLES).values_list("stem", flat=True))
    targets = list(page.links.order_by("pk").values_list("target", flat=True)) if page else []
    back = PageLink.objects.filter(page__vault=vault, target=stem).exclude(page__stem=stem).order_by("page__stem")
    return {
        "name": stem,
        "links": [{"name": target, "exists": target in known} for target in targets],
        "backlinks": list(dict.fromkeys(back.values_list("page__stem", flat=True))),
    }


def history(vault: Vault, name: str | None, limit: int = HISTORY_LIMIT) -> list[dict[str, Any]]:
    wiki = Wiki.of(vault)
    path = wiki.relative(_stem_for_history(vault, name)) if name else None
    try:
        commits = wiki.git.history(path, limit)
    except GitFailed as error:
        raise Refusal(503, error.code, error.message) from None
    return [{"rev": c.rev, "date": c.date, "author": c.author, "subject": c.subject, "change": c.change or None} for c in commits]


def diff(vault: Vault, name: str, rev: str) -> str:
    wiki = Wiki.of(vault)
    path = wiki.relative(_stem_for_history(vault, name))
    full = wiki.git.revision(rev)
    if not full:
        raise Refusal(400, "invalid_value", "rev must be 4 to 40 hex digits that name a commit of this vault", param="rev")
    return wiki.git.diff_of(full, path)


def _stem_for_history(vault: Vault, name: str) -> str:
    """A page's stem, also one that is gone from the vault but not from its history."""
    stem = name.strip().replace(" ", "_")
    try:
        Wiki.of(vault).relative(stem)
    except UnsafeName:
        raise Refusal(400, "invalid_value", "this is not the name of a page", param="name") from None
    return resolve(vault, name) or stem


def summary(text: str) -> str:
    said = sentences(lead_of(parse(text)))
    return wording.plain(bare(said[0]), 200) if said else ""
