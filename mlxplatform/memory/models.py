"""The ledger: what was read, what the model decided, what was proposed, and what became of it.

Three kinds of tables. The **ledger** (conversations, messages, chunks, entities, decisions, folds, changes,
tombstones, watermarks) exists nowhere else. The **index** (pages, sections, links) is derived from the
vault's Markdown and rebuilt from it whenever the two disagree. **Runs** and **questions** are for people.

Decisions and folds name chunks by a stable reference, not by foreign key, so that cutting a grown
conversation anew cannot make the machine ask or write anything twice.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Any

from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone

from mlxplatform.accounts.models import DEFAULT_PROJECT

#: Project names that are folder names on every disk as they stand.
_PLAIN_PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def _change_id() -> str:
    return f"chg_{secrets.token_hex(8)}"


def _run_id() -> str:
    return f"mrun_{secrets.token_hex(8)}"


def folder_of(project: str, name: str) -> str:
    """Where a new vault lies below the memory's folder. No vault's name has an ``@``, so projects never collide."""
    if project == DEFAULT_PROJECT:
        return name
    plain = project if _PLAIN_PROJECT.fullmatch(project) else hashlib.sha256(project.encode()).hexdigest()[:16]
    return f"@{plain}/{name}"


class Vault(models.Model):
    """One wiki: a folder with a git repository, and the policy by which changes enter it.

    It belongs to one project; another project may have a vault of the same name. Names that differ in case
    only are one name, since many disks would give them one folder. ``history_keys`` are the API keys whose
    answers it may read, ``own_history`` does the same for answers asked without a key.
    """

    POLICIES = (("propose", "propose every change"), ("auto", "commit what passes the gate"))
    HAND_EDITS = (("commit", "commit a person's edits by themselves first"), ("wait", "leave pages with uncommitted edits alone"))

    name = models.SlugField(max_length=40)
    project = models.CharField(max_length=64, default=DEFAULT_PROJECT, db_index=True)
    folder = models.CharField(max_length=120, unique=True, editable=False, help_text="Below the memory's folder; kept for good.")
    policy = models.CharField(max_length=8, choices=POLICIES, default="propose")
    hand_edits = models.CharField(max_length=8, choices=HAND_EDITS, default="commit")
    model = models.CharField(max_length=200, default="", blank=True, help_text="Model that proposes; empty: the current one.")
    min_chunks = models.PositiveSmallIntegerField(default=2, help_text="Passages a subject needs before it gets a page.")
    note_chars = models.PositiveIntegerField(default=3000, help_text="Characters of source text in one model call.")
    own_history = models.BooleanField(default=False, help_text="Read answers of this project that were asked without a key.")
    history_keys = models.JSONField(default=list, blank=True, help_text="Ids of the API keys whose answers are read.")
    evaluation_blocks = models.BooleanField(default=False, help_text="Hold back changes that lower the score of the questions.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint("project", Lower("name"), name="memory_vault_name_once_a_project")]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self.folder:
            self.folder = wanted = folder_of(self.project, self.name)
            number = 2
            # Only a vault from before projects had folders of their own can be in the way.
            while Vault.objects.filter(folder__iexact=self.folder).exists():
                self.folder, number = f"{wanted}@{number}", number + 1
        super().save(*args, **kwargs)


class Conversation(models.Model):
    """One conversation of one source. ``digest`` names its present text; ``chunked`` the text that was cut last."""

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="conversations")
    source = models.CharField(max_length=40)
    external_id = models.CharField(max_length=200)
    hash = models.CharField(max_length=8)
    title = models.CharField(max_length=300, default="", blank=True)
    updated_at = models.DateTimeField()
    digest = models.CharField(max_length=32)
    chunked = models.CharField(max_length=32, default="", blank=True)

    class Meta:
        ordering = ["updated_at", "id"]
        constraints = [
            models.UniqueConstraint(fields=["vault", "source", "external_id"], name="memory_conversation_once"),
            models.UniqueConstraint(fields=["vault", "hash"], name="memory_conversation_hash"),
        ]
        indexes = [models.Index(fields=["vault", "updated_at"])]

    def __str__(self) -> str:
        return self.title or self.external_id


class Message(models.Model):
    """One turn's text, stored once. Positions count from 1."""

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="messages")
    position = models.PositiveIntegerField()
    role = models.CharField(max_length=9)
    text = models.TextField()

    class Meta:
        ordering = ["position"]
        constraints = [models.UniqueConstraint(fields=["conversation", "position"], name="memory_message_once")]


class Chunk(models.Model):
    """A range of turns about one thing: a pointer and a label, no copy of the text.

    ``ref`` is ``hash:start-end#digest``: it changes exactly when the text behind it does.
    """

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="chunks")
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="chunks")
    ref = models.CharField(max_length=60)
    start = models.PositiveIntegerField()
    end = models.PositiveIntegerField()
    label = models.CharField(max_length=120)
    at = models.DateTimeField()
    extracted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["at", "conversation_id", "start"]
        constraints = [models.UniqueConstraint(fields=["vault", "ref"], name="memory_chunk_once")]
        indexes = [models.Index(fields=["vault", "extracted_at"])]

    def __str__(self) -> str:
        return self.ref


class Entity(models.Model):
    """A thing conversations speak of. ``key`` is its folded name; ``stem`` its page, '' while it has none."""

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="entities")
    key = models.CharField(max_length=120)
    name = models.CharField(max_length=120)
    stem = models.CharField(max_length=120, default="", blank=True, db_index=True)
    notable = models.BooleanField(default=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["vault", "key"], name="memory_entity_once")]

    def __str__(self) -> str:
        return self.name


class Alias(models.Model):
    """Another folded name of an entity."""

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="aliases")
    key = models.CharField(max_length=120)
    entity = models.ForeignKey(Entity, on_delete=models.CASCADE, related_name="aliases")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["vault", "key"], name="memory_alias_once")]


class ChunkEntity(models.Model):
    """A chunk speaks of an entity, in these words."""

    chunk = models.ForeignKey(Chunk, on_delete=models.CASCADE, related_name="mentions")
    entity = models.ForeignKey(Entity, on_delete=models.CASCADE, related_name="mentions")
    surface = models.CharField(max_length=120)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["chunk", "entity"], name="memory_mention_once")]


class Redirect(models.Model):
    """Where a name without a page of its own is at home. ``kind``: fold (another name) or capture (too rare yet)."""

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="redirects")
    surface = models.CharField(max_length=120)
    stem = models.CharField(max_length=120, default="", blank=True)
    kind = models.CharField(max_length=8)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["vault", "surface"], name="memory_redirect_once")]


class Watermark(models.Model):
    """How far a source has been read. The cursor means something to the source only."""

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="watermarks")
    source = models.CharField(max_length=40)
    cursor = models.CharField(max_length=64, default="")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["vault", "source"], name="memory_watermark_once")]


class HistoryTurn(models.Model):
    """Where a turn of the response history was put. ``lineage`` names everything said up to it.

    Outlives its conversation, so that what was forgotten is recognised when it is sent again.
    """

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="+")
    lineage = models.CharField(max_length=32)
    external_id = models.CharField(max_length=200)
    position = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["vault", "lineage"], name="memory_history_turn_once")]


class HistoryRecord(models.Model):
    """An answered request that was read: whose key asked it, and up to which turn of a conversation it reaches."""

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="+")
    request = models.CharField(max_length=80)
    key_id = models.CharField(max_length=32, default="", blank=True)
    external_id = models.CharField(max_length=200)
    upto = models.PositiveIntegerField()
    deleted = models.BooleanField(default=False, help_text="Its owner deleted it; the next run draws the consequences.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["vault", "request"], name="memory_history_record_once")]
        indexes = [models.Index(fields=["vault", "external_id"]), models.Index(fields=["vault", "key_id"])]


class Decision(models.Model):
    """An answer a stage has already got for a subject, and on what basis; the same question is not asked again."""

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="decisions")
    stage = models.CharField(max_length=16)
    subject = models.CharField(max_length=300)
    basis = models.CharField(max_length=32)
    outcome = models.JSONField(default=dict)
    made_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["vault", "stage", "subject"], name="memory_decision_once")]


class Run(models.Model):
    """One synthesis run and its report."""

    id = models.CharField(primary_key=True, max_length=24, default=_run_id)
    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="runs")
    job = models.CharField(max_length=24, default="", blank=True, db_index=True)
    state = models.CharField(max_length=10, default="running")
    report = models.JSONField(default=dict)
    score = models.FloatField(null=True, blank=True)
    started_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-started_at"]

    def __str__(self) -> str:
        return self.id


class Change(models.Model):
    """One proposed edit of one page, until a person or the policy decides. The review queue's card.

    ``planned`` (its run is not over) → ``proposed`` → ``approved`` → ``accepted`` → ``reverted``; or ``rejected``
    by a person, ``withdrawn`` because its source or its sense is gone. ``approved`` means: decided, not yet in
    git. Only an accepted change is in the vault.
    """

    STATES = ("planned", "proposed", "approved", "accepted", "rejected", "withdrawn", "reverted")
    OPEN = ("planned", "proposed", "approved")

    id = models.CharField(primary_key=True, max_length=24, default=_change_id)
    number = models.PositiveBigIntegerField(default=0, help_text="Order in which changes of a vault apply.")
    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="changes")
    run = models.ForeignKey(Run, on_delete=models.SET_NULL, null=True, blank=True, related_name="changes")
    stem = models.CharField(max_length=120, db_index=True)
    kind = models.CharField(max_length=16)
    state = models.CharField(max_length=10, default="planned", db_index=True)
    edit = models.JSONField()
    fingerprint = models.CharField(max_length=32)
    summary = models.CharField(max_length=300, default="", blank=True)
    confidence = models.FloatField(null=True, blank=True)
    note = models.TextField(default="", blank=True, help_text="Why it waits, or why it did not pass.")
    edited_text = models.TextField(null=True, blank=True, help_text="A reviewer's own text for the page, in place of the edit.")
    edited_base = models.CharField(max_length=16, default="", blank=True)
    before = models.TextField(null=True, blank=True)
    result = models.CharField(max_length=16, default="", blank=True, help_text="Digest of the text being committed.")
    commit = models.CharField(max_length=40, default="", blank=True)
    reconciled = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now)
    decided_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.CharField(max_length=150, default="", blank=True)

    class Meta:
        ordering = ["number", "created_at", "id"]
        constraints = [models.UniqueConstraint(fields=["vault", "fingerprint"], name="memory_change_once")]
        indexes = [models.Index(fields=["vault", "state"])]

    def __str__(self) -> str:
        return f"{self.kind} {self.stem}"


class Fold(models.Model):
    """A chunk has been dealt with for a page: folded into an anchor, pending in a change, or found to add nothing."""

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="folds")
    chunk_ref = models.CharField(max_length=60)
    stem = models.CharField(max_length=120)
    anchor = models.CharField(max_length=120, default="", blank=True)
    change = models.ForeignKey(Change, on_delete=models.SET_NULL, null=True, blank=True, related_name="folds")
    reason = models.CharField(max_length=200, default="", blank=True)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["vault", "chunk_ref", "stem"], name="memory_fold_once")]


class Tombstone(models.Model):
    """Something a person asked to forget, kept so that it does not come back.

    ``kind`` conversation (``key`` is its source and id), fact (``text`` is the sentence) or page (``key`` is its stem).
    """

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="tombstones")
    kind = models.CharField(max_length=12)
    key = models.CharField(max_length=300)
    text = models.TextField(default="", blank=True)
    by = models.CharField(max_length=150, default="", blank=True)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["vault", "kind", "key"], name="memory_tombstone_once")]


class Question(models.Model):
    """A frozen evaluation question. ``negative``: the wiki must not be able to answer it with these words."""

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="questions")
    text = models.CharField(max_length=300)
    expected = models.JSONField(default=list, help_text="Any of these texts answers it.")
    negative = models.BooleanField(default=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["vault", "text"], name="memory_question_once")]

    def __str__(self) -> str:
        return self.text


class Page(models.Model):
    """Index of one page of the vault, derived from its Markdown."""

    vault = models.ForeignKey(Vault, on_delete=models.CASCADE, related_name="pages")
    folder = models.CharField(max_length=12, default="articles")
    stem = models.CharField(max_length=120)
    title = models.CharField(max_length=120)
    kind = models.CharField(max_length=40, default="", blank=True)
    summary = models.CharField(max_length=400, default="", blank=True)
    info = models.JSONField(default=dict)
    digest = models.CharField(max_length=16)

    class Meta:
        ordering = ["stem"]
        constraints = [models.UniqueConstraint(fields=["vault", "folder", "stem"], name="memory_page_once")]

    def __str__(self) -> str:
        return self.title


class Section(models.Model):
    """Index of one section, the unit of search. ``vector`` is a unit float32 embedding when a model made one."""

    page = models.ForeignKey(Page, on_delete=models.CASCADE, related_name="sections")
    place = models.PositiveIntegerField()
    title = models.CharField(max_length=200, default="", blank=True)
    text = models.TextField()
    vector = models.BinaryField(null=True, blank=True)
    vector_model = models.CharField(max_length=200, default="", blank=True)

    class Meta:
        ordering = ["place"]


class PageLink(models.Model):
    """One page links to another, which may not exist."""

    page = models.ForeignKey(Page, on_delete=models.CASCADE, related_name="links")
    target = models.CharField(max_length=200, db_index=True)
