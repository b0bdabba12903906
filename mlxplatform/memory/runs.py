"""The synthesis job: read, decide, plan, weigh, commit, report. Each stage can be run alone, again, or after a crash.

Runs of one vault take turns: a second one waits for the first and then finds what is left to do. People can
review and edit meanwhile, since a run holds the write lock only while it commits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync
from django.utils import timezone

from mlxplatform.files import service as files
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import find_place
from mlxplatform.jobs.context import JobContext, JobFailed, JobStopped
from mlxplatform.memory import changes, evaluation, forget, history, index, meaning
from mlxplatform.memory.completions import Completions, RowCompletions
from mlxplatform.memory.git import GitFailed
from mlxplatform.memory.ingest import IngestReport, ingest
from mlxplatform.memory.locks import LockBusy
from mlxplatform.memory.models import Run, Vault
from mlxplatform.memory.report import Report, StageReport
from mlxplatform.memory.sources import Unreadable
from mlxplatform.memory.sources.registry import READERS
from mlxplatform.memory.stages import create, extract, link, patch, place, reconcile, route, segment, tighten
from mlxplatform.memory.synthesis import Scope, Synthesis
from mlxplatform.memory.vault import Wiki
from mlxplatform.memory.wiki.signals import signals
from mlxplatform.rows.models import RowCall

#: The stages between reading and committing, in order, with what people are told.
STAGES: dict[str, tuple[Callable[[Synthesis], None], str]] = {
    segment.STAGE: (segment.run, "cutting conversations into passages"),
    extract.STAGE: (extract.run, "finding what passages are about"),
    route.STAGE: (route.run, "deciding which subjects get a page"),
    create.STAGE: (create.run, "writing new pages"),
    place.STAGE: (place.run, "finding where passages belong"),
    patch.STAGE: (patch.run, "adding to pages"),
    reconcile.STAGE: (reconcile.run, "settling contradictions"),
    tighten.STAGE: (tighten.run, "removing repetition"),
    link.STAGE: (link.run, "linking pages"),
}
#: Seconds a run waits for its turn before it gives up; a night's work of another run fits.
TURN_WAIT_S = 6 * 3600.0


def run(ctx: JobContext) -> dict[str, Any]:
    """Runner of ``memory_synthesis``. Config: vault, and optionally stages, conversations, pages."""
    vault = _vault(ctx)
    model = vault.model or _current_model()
    result = synthesize(ctx, vault, RowCompletions(ctx, model, vault.project))
    told = StageReport("embed")
    ctx.stage("embed", 0.98, "making pages findable by meaning")
    meaning.embed_new(ctx, vault, told)
    # A run that is done is never resumed: its prompts, which quote conversations, need not be kept.
    RowCall.objects.filter(job=ctx.job_id).delete()
    return {**result, "embedding": told.as_json()}


def synthesize(ctx: JobContext, vault: Vault, completions: Completions) -> dict[str, Any]:
    """One run with whoever answers; the job's result is the run's report."""
    wiki = Wiki.of(vault)
    try:
        wiki.set_up()
        ctx.stage("wait", 0.0, "waiting for this vault's turn")
        lock = wiki.run_lock()
        lock.acquire(TURN_WAIT_S, ctx.check)
    except GitFailed as error:
        raise JobFailed(error.code, error.message, retry=error.code == "vault_locked") from None
    except LockBusy:
        raise JobFailed("vault_busy", "another run has held this vault for hours") from None
    with lock:
        row, _ = Run.objects.get_or_create(job=ctx.job_id, vault=vault)
        report = Report()
        state = "failed"
        try:
            _synthesize(ctx, vault, wiki, row, completions, report)
            state = "done"
        except JobStopped:
            state = "stopped"
            raise
        except GitFailed as error:
            report.notes.append(f"{error.message}; what was written is kept and will be committed by the next run")
            raise JobFailed(error.code, report.notes[-1]) from None
        except JobFailed as failure:
            report.notes.append(failure.message)
            raise
        finally:
            _end(row, report, state)
    return {"run": row.id, **report.as_json()}


def _synthesize(ctx: JobContext, vault: Vault, wiki: Wiki, row: Run, completions: Completions, report: Report) -> None:
    for change in changes.commit_approved(vault, wiki, ctx.check):
        report.commits.append(change.commit)
        report.notes.append(f"committed a change of an earlier run: {change.summary}")
    if kept := changes.keep_all_hand_edits(vault, wiki):
        report.notes.append(f"kept hand edits to {len(kept)} pages in a commit of their own")
    index.refresh(vault, wiki)
    _read_history(ctx, vault, report)
    config = ctx.config
    scope = Scope(frozenset(config.get("conversations") or ()), frozenset(config.get("pages") or ()))
    syn = Synthesis(
        vault, wiki, row, completions, report, scope, ctx.check, lambda stage, message: ctx.log(f"{stage}: {message}")
    )
    syn.load()
    before = evaluation.score(syn.pages, list(vault.questions.all()))
    wanted = config.get("stages") or list(STAGES)
    for place_, (name, (stage, message)) in enumerate(STAGES.items()):
        if name in wanted:
            ctx.check()
            ctx.stage(name, 0.05 + 0.85 * place_ / len(STAGES), message)
            stage(syn)
            told = report.stage(name)
            ctx.log(
                f"{name}: read {told.read}, asked {told.calls}, proposed {told.proposed}"
                + (f" ({told.because})" if told.because else "")
            )
            _save(row, report)
    after = evaluation.score(syn.pages, list(vault.questions.all()))
    report.score = row.score = round(after.score, 4)
    if after.failed:
        report.notes.append(f"questions not answered: {'; '.join(after.failed[:10])}")
    if vault.evaluation_blocks and after.score < before.score:
        report.held = f"the score of the questions would fall from {before.score:.2f} to {after.score:.2f}"
    changes.settle(row, report.held)
    ctx.stage("commit", 0.92, "committing" if vault.policy == "auto" else "changes wait for review")
    for change in changes.commit_approved(vault, wiki, ctx.check):
        report.commits.append(change.commit)
        ctx.artefact(change.stem, change=change.id, commit=change.commit)
    _talk(vault, wiki, report)
    index.refresh(vault, wiki)


def _read_history(ctx: JobContext, vault: Vault, report: Report) -> None:
    for found in history.gone(vault):
        ctx.check()
        if found.kept:
            forget.tail(vault, found.conversation, found.kept, by="source")
        else:
            forget.conversation(vault, found.conversation, by="source")
        history.done_with(vault, found.conversation.external_id)
        report.stage("ingest").count("deleted at the source")
    if not history.keys_of(vault):
        return
    told = report.stage("ingest")
    read = history.read(vault, ctx.check)
    told.read = read.added + read.changed
    for name in ("added", "changed", "forgotten"):
        told.count(name, getattr(read, name))
    if not told.read:
        told.because = "the response history holds nothing new"


def _talk(vault: Vault, wiki: Wiki, report: Report) -> None:
    """Write the structural remarks to Talk pages, when they have changed."""
    found: dict[str, list[str]] = {}
    for signal in signals(wiki.pages()):
        found.setdefault(signal.stem, []).append(f"- {signal.kind}: {signal.message}")
    wanted = {stem: f"# Talk: {stem.replace('_', ' ')}\n\n" + "\n".join(lines) + "\n" for stem, lines in found.items()}
    present = wiki.pages("Talk")
    written = []
    with changes.writing(wiki):
        for stem in sorted({*wanted, *present}):
            # A Talk page that a person wrote is not ours to change.
            ours = stem not in present or present[stem].startswith(f"# Talk: {stem.replace('_', ' ')}\n\n- ")
            if ours and wanted.get(stem) != present.get(stem):
                wiki.write(stem, wanted.get(stem), "Talk")
                written.append(wiki.relative(stem, "Talk"))
        if written and (rev := wiki.git.commit(written, f"memory: remarks on {len(written)} pages\n", wiki.write_lock)):
            report.commits.append(rev)


def _save(row: Run, report: Report) -> None:
    row.report = report.as_json()
    row.save(update_fields=["report", "score"])


def _end(row: Run, report: Report, state: str) -> None:
    row.state, row.ended_at = state, timezone.now()
    row.report = report.as_json()
    row.save()


def _vault(ctx: JobContext) -> Vault:
    vault = Vault.objects.filter(name=ctx.config.get("vault", ""), project=ctx.project).first()
    if vault is None:
        raise JobFailed("vault_not_found", "this vault does not exist any more")
    return vault


def _current_model() -> str:
    try:
        return async_to_sync(find_place)(None).model.id
    except Refusal as refusal:
        raise JobFailed(refusal.code, refusal.message, retry=refusal.status >= 500) from None


def run_import(ctx: JobContext) -> dict[str, Any]:
    """Runner of ``memory_import``. Config: vault, format, file (a storage name), source, complete."""
    vault = _vault(ctx)
    config = ctx.config
    try:
        file = files.find(config["file"], vault.project)
        with files.open_blob(file) as handle:
            raw = handle.read()
    except Refusal:
        raise JobFailed("file_not_found", "the uploaded file is gone; upload it again") from None
    ctx.stage("read", 0.1, "reading conversations")
    source = config.get("source") or config["format"]
    try:
        read = ingest(vault, source, _checked(READERS[config["format"]](raw, config.get("name", "import")), ctx))
    except Unreadable as error:
        raise JobFailed("unreadable_import", str(error)) from None
    removed = _cascade(ctx, vault, source, read) if config.get("complete") else 0
    if config.get("delete_file"):
        files.delete(file)
    return {"source": source, **read.as_json(), "removed": removed}


def _checked(items: Any, ctx: JobContext) -> Any:
    for item in items:
        ctx.check()
        yield item


def _cascade(ctx: JobContext, vault: Vault, source: str, read: IngestReport) -> int:
    """Forget what a complete export no longer holds: it was deleted at its source."""
    gone = [c for c in vault.conversations.filter(source=source) if c.external_id not in read.seen]
    for conversation in gone:
        ctx.check()
        ctx.log(f"deleted at the source: {conversation}")
        forget.conversation(vault, conversation, by="source")
    return len(gone)
