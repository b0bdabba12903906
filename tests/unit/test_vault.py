"""The vault's git under fire: parallel writers, locks left and held, refusals, unusual repositories and names."""

import errno
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connection

from mlxplatform.memory import changes, git, locks, runs
from mlxplatform.memory.git import GitFailed
from mlxplatform.memory.ingest import ingest
from mlxplatform.memory.models import Change, Vault
from mlxplatform.memory.sources.registry import READERS
from mlxplatform.memory.vault import UnsafeName, Wiki
from tests.fixtures.memory_notes import Ctx, Scripted, jsonl


@pytest.fixture
def wiki(tmp_path):
    made = Wiki(tmp_path / "memory" / "notes")
    made.set_up()
    return made


def run_git(wiki, *args):
    return subprocess.run(["git", "-C", wiki.root, *args], check=True, capture_output=True, text=True).stdout


def commit_page(wiki, stem, text="Words.\n"):
    with wiki.writing():
        wiki.write(stem, text)
        return wiki.git.commit([wiki.relative(stem)], f"memory: write {stem}\n", wiki.write_lock)


@pytest.mark.django_db(transaction=True)
def test_four_syntheses_at_once_on_one_wiki_all_succeed_with_one_commit_each(settings, tmp_path):
    settings.ENV = type(settings.ENV)({**settings.ENV.values, "home": tmp_path}, "", "")
    vault = Vault.objects.create(name="notes", policy="auto", min_chunks=1)
    wiki = Wiki.of(vault)
    wiki.set_up()
    subjects = ["Alpha Boat", "Beta Boat", "Gamma Boat", "Delta Boat"]
    for subject in subjects:
        says = f"The {subject} needs a new sail number {len(subject)}."
        messages = [{"role": "user", "content": f"About the {subject}?"}, {"role": "assistant", "content": says}]
        ingest(vault, "jsonl", READERS["jsonl"](jsonl([{"id": subject, "messages": messages, "updated_at": 1_700_000_000}]), "x"))

    def job(number):
        try:
            named = Scripted(lambda ask: {"names": [subjects[number]]} if ask.stage == "extract" else None)
            own = Vault.objects.get(pk=vault.pk)
            return runs.synthesize(Ctx({"vault": "notes", "conversations": [subjects[number]]}, f"job_{number:016d}"), own, named)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(job, range(4)))
    assert all("nothing_because" not in result for result in results)
    created = [line for line in run_git(wiki, "log", "--format=%s").splitlines() if line.startswith("memory: create")]
    assert sorted(created) == sorted(f"memory: create {subject}" for subject in subjects)
    for rev in run_git(wiki, "log", "--format=%H", "--grep=^memory: create").split():
        assert len(run_git(wiki, "show", "--name-only", "--format=", rev).split()) == 1
    assert run_git(wiki, "fsck", "--strict") == "" and run_git(wiki, "status", "--porcelain") == ""
    assert not (wiki.root / ".git" / "index.lock").exists()


def test_many_processes_commit_different_pages_without_a_failure(wiki):
    code = (
        "import sys; from pathlib import Path; import django; django.setup()\n"
        "from mlxplatform.memory.vault import Wiki\n"
        "wiki = Wiki(Path(sys.argv[1]))\n"
        "for n in range(5):\n"
        "    with wiki.writing():\n"
        "        stem = f'Page_{sys.argv[2]}_{n}'; wiki.write(stem, 'x\\n')\n"
        "        assert wiki.git.commit([wiki.relative(stem)], stem + '\\n', wiki.write_lock)\n"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "mlxplatform.settings"}
    writers = [subprocess.Popen([sys.executable, "-c", code, str(wiki.root), str(n)], env=env) for n in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert len(run_git(wiki, "log", "--format=%s", "--grep=^Page_").splitlines()) == 20
    assert run_git(wiki, "fsck", "--strict") == ""


def test_a_lock_of_our_own_killed_process_is_recovered_at_once(wiki):
    wiki.write_lock.path.write_bytes(b"git")
    (wiki.root / ".git" / "index.lock").write_bytes(b"")
    assert commit_page(wiki, "After_Kill")
    assert not (wiki.root / ".git" / "index.lock").exists()
    assert wiki.write_lock.path.read_bytes() == b""


def test_a_kill_during_our_commit_leaves_nothing_that_blocks_the_next(wiki):
    hook = wiki.root / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    started = wiki.root.parent / "started"
    hook.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 30\n")
    hook.chmod(0o755)
    code = (
        "import sys; from pathlib import Path; import django; django.setup()\n"
        "from mlxplatform.memory.vault import Wiki\n"
        "wiki = Wiki(Path(sys.argv[1]))\n"
        "with wiki.writing():\n"
        "    wiki.write('Half', 'x\\n'); wiki.git.commit(['articles/Half.md'], 'm\\n', wiki.write_lock)\n"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "mlxplatform.settings"}
    writer = subprocess.Popen([sys.executable, "-c", code, str(wiki.root)], env=env, start_new_session=True)
    deadline = time.monotonic() + 30
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(writer.pid, 9)
    writer.wait()
    hook.unlink()
    assert list((wiki.root / ".git").glob("*.lock")) != []
    assert commit_page(wiki, "Next")
    assert run_git(wiki, "fsck", "--strict", "--no-dangling") == ""


def test_an_old_lock_of_nobody_is_recovered(wiki):
    lock = wiki.root / ".git" / "index.lock"
    lock.write_bytes(b"")
    old = time.time() - locks.ABANDONED_AFTER_S - 1
    os.utime(lock, (old, old))
    assert commit_page(wiki, "Old_Lock")


def test_a_lock_that_a_living_process_holds_is_waited_for_however_old(wiki):
    lock = wiki.root / ".git" / "index.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"f = open({str(lock)!r}, 'w'); print('held', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    holder.stdout.readline()
    old = time.time() - 3600
    os.utime(lock, (old, old))
    wiki.write_lock.path.write_bytes(b"git")
    seen = []

    def let_go():
        seen.append(lock.exists())
        lock.unlink()
        holder.communicate(b"\n")

    timer = threading.Timer(1.0, let_go)
    timer.start()
    assert commit_page(wiki, "Waited")
    timer.join()
    assert seen == [True]


def test_a_living_git_process_in_the_vault_keeps_its_lock(wiki):
    lock = wiki.root / ".git" / "index.lock"
    living = subprocess.Popen(["git", "-C", wiki.root, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        lock.write_bytes(b"")
        old = time.time() - 3600
        os.utime(lock, (old, old))
        assert not locks.is_abandoned(lock, wiki.root, predecessor_died=True)
    finally:
        living.communicate()
    assert locks.is_abandoned(lock, wiki.root, predecessor_died=True)


def test_a_lock_held_too_long_fails_with_a_reason(wiki, monkeypatch):
    monkeypatch.setattr(git, "LOCK_WAIT_S", 0.3)
    lock = wiki.root / ".git" / "index.lock"
    with lock.open("w"), pytest.raises(GitFailed, match="has held the vault's lock") as caught:
        commit_page(wiki, "Locked_Out")
    assert caught.value.code == "vault_locked"


def test_nothing_to_commit_is_no_commit_and_no_error(wiki):
    first = commit_page(wiki, "Same")
    head = wiki.git.head()
    assert commit_page(wiki, "Same") == "" and wiki.git.head() == head == first


def test_what_else_is_staged_or_changed_stays_as_it_is(wiki):
    commit_page(wiki, "Mine", "one\n")
    wiki.path("Mine").write_text("two\n")
    wiki.path("Staged").write_text("s\n")
    run_git(wiki, "add", "articles/Staged.md")
    commit_page(wiki, "Theirs")
    assert run_git(wiki, "show", "--name-only", "--format=", "HEAD").split() == ["articles/Theirs.md"]
    assert run_git(wiki, "status", "--porcelain").splitlines() == [" M articles/Mine.md", "A  articles/Staged.md"]


def test_configuration_of_the_machine_does_not_get_in_the_way(wiki, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[commit]\n gpgSign = true\n[user]\n useConfigOnly = true\n[core]\n autocrlf = true\n editor = false\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent/index")
    assert commit_page(wiki, "Fine")
    monkeypatch.undo()
    assert run_git(wiki, "log", "-1", "--format=%an").strip() == "MLX Platform"


def test_a_vault_inside_another_repository_gets_its_own(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    wiki = Wiki(tmp_path / "memory" / "inner")
    wiki.set_up()
    assert (wiki.root / ".git").is_dir() and wiki.git.git_dir == wiki.root / ".git"


def test_set_up_never_overwrites(wiki):
    page = wiki.root / "Meta" / "Chunking.md"
    page.write_text("my own policy\n")
    (wiki.root / "README.md").unlink()
    done = wiki.set_up()
    assert done.created == ("README.md",) and page.read_text() == "my own policy\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_vault_that_cannot_be_written_says_so(wiki, monkeypatch, code):
    def refuse(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(GitFailed) as caught:
        commit_page(wiki, "Read_Only")
    assert caught.value.code == "vault_unwritable" and str(wiki.root) not in caught.value.message


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "\0", ".git", "-rf", "a:b", "x" * 201, "[[x", "a\nb", "e\u0301"]
)
def test_names_that_are_no_pages_are_refused(wiki, name):
    with pytest.raises(UnsafeName):
        wiki.path(name)


def test_links_out_of_the_vault_are_neither_read_nor_written(wiki, tmp_path):
    secret = tmp_path / "secret.md"
    secret.write_text("secret")
    (wiki.root / "articles" / "Link.md").symlink_to(secret)
    assert "Link" not in wiki.stems() and "Link" not in wiki.pages()
    for use in (lambda: wiki.read("Link"), lambda: wiki.write("Link", "x")):
        with pytest.raises(UnsafeName):
            use()
    assert secret.read_text() == "secret"


def test_a_page_that_is_not_utf8_is_left_alone(wiki):
    wiki.path("Latin").write_bytes(b"caf\xe9\n")
    assert "Latin" not in wiki.pages()
    with pytest.raises(UnsafeName):
        wiki.read("Latin")


@pytest.mark.django_db(transaction=True)
def test_a_page_whose_name_differs_in_case_only_is_not_made(settings, tmp_path):
    settings.ENV = type(settings.ENV)({**settings.ENV.values, "home": tmp_path}, "", "")
    vault = Vault.objects.create(name="notes")
    wiki = Wiki.of(vault)
    wiki.set_up()
    commit_page(wiki, "lelit_anna", "# lelit anna\n\nMine.\n")
    from mlxplatform.memory.wiki.edits import CreatePage

    change = changes.order(vault, "Lelit_Anna", "create", CreatePage("Lelit Anna", "thing", [], [], []), "user:ann", "x")
    assert changes.commit_approved(vault, wiki) == []
    assert "differs in case" in Change.objects.get(pk=change.pk).note
