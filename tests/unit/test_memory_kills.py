"""``kill -9`` inside every step of a run, by name, at several points of each: the next run makes the same wiki.

A child of this process does the run and kills itself for real at the n-th thing it writes inside that step: a
row, a file, or a git command. What the vault holds in the end is compared byte for byte with an undisturbed run.
"""

import os
import signal
import subprocess
import traceback

import pytest
from django.db import connection, connections

from mlxplatform.memory import changes, index, runs
from mlxplatform.memory.git import Git
from mlxplatform.memory.ingest import ingest
from mlxplatform.memory.models import Change, Fold, Vault
from mlxplatform.memory.sources.registry import READERS
from mlxplatform.memory.vault import Wiki
from mlxplatform.memory.wiki import edits
from mlxplatform.memory.wiki.edits import AddSentences, Sentence
from tests.fixtures.memory_notes import CORPUS, LATER, Ctx, Scripted, jsonl

pytestmark = pytest.mark.django_db(transaction=True)
JOB = "job_00000000000000b2"
#: At which write of the step each attempt dies, counted anew in each.
POINTS = (1, 2, 3, 5)
#: Steps outside the table of stages, by where they are found.
STEPS = {
    "commit": (changes, "commit_approved"),
    "talk": (runs, "_talk"),
    "index": (index, "update_page"),
    "settle": (changes, "settle"),
}
MORE = [
    LATER,
    {
        "id": "chat-5",
        "updated_at": "2026-03-10T08:00:00Z",
        "messages": [
            {"role": "user", "content": "I read Python books beside the Lelit Anna."},
            {"role": "assistant", "content": "Python is the language of the brew timer of the Lelit Anna."},
            {"role": "user", "content": "And how often is the Lelit Anna descaled, again?"},
            {
                "role": "assistant",
                "content": "Python reminds you, and the Lelit Anna is descaled every month because water is hard.",
            },
        ],
    },
    {
        "id": "chat-6",
        "updated_at": "2026-03-11T08:00:00Z",
        "messages": [
            {"role": "user", "content": "Is Python fast enough?"},
            {"role": "assistant", "content": "Python reads the thermometer ten times a second."},
        ],
    },
]
_reference: dict[str, bytes] = {}


def prepared(name):
    """A vault with one finished run and new conversations that give every stage something to do."""
    vault = Vault.objects.create(name=name, policy="auto")
    read(vault, CORPUS)
    runs.synthesize(Ctx({"vault": name}), vault, Scripted())
    _say_twice(vault)
    read(vault, MORE)
    return vault


def _say_twice(vault):
    """What two accepted proposals of different nights can leave: one statement in two wordings."""
    source = edits.sources_of(edits.from_json(vault.changes.get(kind="create").edit))[-1]
    again = AddSentences("Parts", [Sentence("A silicone gasket of 57 mm is what the Lelit Anna machine takes.", [source])])
    change = changes.order(vault, "Lelit_Anna", "patch", again, "user:ann", "Says it again")
    with changes.writing(wiki := Wiki.of(vault)):
        assert changes.commit_one(wiki, change)


def read(vault, conversations):
    ingest(vault, "jsonl", READERS["jsonl"](jsonl(conversations), "x"))


def synthesize(vault, job=JOB):
    client = Scripted()
    runs.synthesize(Ctx({"vault": vault.name}, job), Vault.objects.get(pk=vault.pk), client)
    return client


def articles(vault):
    root = Wiki.of(vault).root
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*.md") if ".git" not in p.parts}


def die_inside(step, at):
    """Arrange that this process kills itself at the ``at``-th write inside ``step``."""
    inside, count = [False], [0]

    def tick():
        count[0] += inside[0]
        if inside[0] and count[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function):
        def run(*args, **kwargs):
            tick()
            done = function(*args, **kwargs)
            tick()
            return done

        return run

    def entered(function):
        def run(*args, **kwargs):
            inside[0] = True
            try:
                return function(*args, **kwargs)
            finally:
                inside[0] = False

        return run

    def on_sql(execute, sql, params, many, context):
        if sql.startswith(("INSERT", "UPDATE", "DELETE")):
            tick()
        return execute(sql, params, many, context)

    Git.run, Wiki.write = counted(Git.run), counted(Wiki.write)
    if step in STEPS:
        module, name = STEPS[step]
        setattr(module, name, entered(getattr(module, name)))
    else:
        stage, message = runs.STAGES[step]
        runs.STAGES[step] = (entered(stage), message)
    connection.execute_wrappers.append(on_sql)


def killed(vault, step, at):
    """Whether a run in a child of its own was killed inside the step; it ends well otherwise."""
    connections.close_all()
    child = os.fork()
    if child == 0:
        try:
            die_inside(step, at)
            synthesize(vault)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the run failed by itself"
    return os.WIFSIGNALED(status)


@pytest.fixture
def reference(settings, tmp_path):
    """The wiki as a run that nobody disturbs makes it."""
    settings.ENV = type(settings.ENV)({**settings.ENV.values, "home": tmp_path}, "", "")
    if not _reference:
        vault = prepared("undisturbed")
        synthesize(vault)
        _reference.update(articles(vault))
    return _reference


@pytest.mark.parametrize("step", [*runs.STAGES, *STEPS])
def test_a_kill_inside_a_step_is_as_if_it_had_not_been(reference, step):
    vault = prepared("notes")
    kills = [killed(vault, step, at) for at in POINTS]
    assert kills[0], f"{step} had nothing to write"
    synthesize(vault)
    assert articles(vault) == reference
    root = Wiki.of(vault).root
    subjects = git(root, "log", "--format=%s").splitlines()
    changed = Change.objects.filter(vault=vault, state="accepted").count()
    assert sum(not s.startswith(("memory: set up", "memory: remarks")) for s in subjects) == changed
    assert git(root, "status", "--porcelain") == "" and git(root, "fsck", "--strict", "--no-dangling") == ""
    folds = Fold.objects.filter(vault=vault).values_list("chunk_ref", "stem")
    assert len(folds) == len(set(folds))
    assert not Change.objects.filter(vault=vault, state__in=("planned", "approved")).exists()
    before = articles(vault)
    assert synthesize(vault, "job_00000000000000c3").calls == 0 and articles(vault) == before


def git(root, *args):
    return subprocess.run(["git", "-C", root, *args], check=True, capture_output=True, text=True).stdout
