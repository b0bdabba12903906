"""The vault's git, and nothing else's: every git command the platform runs on a wiki goes through here.

Commits name their paths, run the owner's hooks, and never rewrite, force or push anything. A lock that a
killed process left behind is recovered; one that a living process holds is waited for. Configuration that
would change behaviour (signing, line endings, prompts) is switched off per command, and nothing a client
sends reaches a command line except a page's own path and a checked revision.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import structlog

from mlxplatform.memory.locks import WriteLock, is_abandoned

log = structlog.get_logger(__name__)

#: A git command that takes longer than this hangs (a hook that waits for input, a dead network disk), seconds.
COMMAND_TIMEOUT_S = 120
#: How long a lock of somebody else's git is waited for before the commit fails with a reason, seconds.
LOCK_WAIT_S = 40
#: Pause between two looks at a held lock, seconds.
LOCK_POLL_S = 0.2
#: Name and mail used when the owner's git knows none.
AUTHOR = ("MLX Platform", "memory@localhost")
#: Names the change a commit holds, so that a change whose end was not recorded can be found again.
CHANGE_TRAILER = "Memory-Change"

_REVISION = re.compile(r"^[0-9a-f]{4,40}\Z")
_LOCKED = re.compile(r"\.lock['\"]?: File exists|cannot lock ref", re.IGNORECASE)
_UNDER_WAY = ("MERGE_HEAD", "rebase-merge", "rebase-apply", "CHERRY_PICK_HEAD", "REVERT_HEAD")
_QUIET = ("core.quotePath=false", "commit.gpgSign=false", "core.autocrlf=false", "core.fsmonitor=false", "gc.auto=0")
_COMMIT_HOOKS = ("pre-commit", "prepare-commit-msg", "commit-msg")


class GitFailed(Exception):
    """Git would not; ``code`` is stable, the message is fit for a person and names no path of this machine."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Commit:
    rev: str
    date: str
    author: str
    subject: str
    change: str = ""


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


class Git:
    """One vault's repository. Whoever commits holds the vault's write lock and passes it."""

    def __init__(self, root: Path):
        self.root = root

    def run(self, *args: str, check: bool = True, stdin: str = "") -> Finished:
        """One git command in the vault.

        Raises:
            GitFailed: git is missing, hangs, or (with ``check``) refuses.
        """
        settings = [part for value in (*_QUIET, f"safe.directory={self.root}") for part in ("-c", value)]
        command = ["git", *settings, "-C", str(self.root), *args]
        try:
            done = subprocess.run(
                command, input=stdin.encode(), capture_output=True, timeout=COMMAND_TIMEOUT_S, env=_environment(), check=False
            )
        except FileNotFoundError:
            raise GitFailed("git_missing", "git is not installed on this machine; install it and try again") from None
        except subprocess.TimeoutExpired:
            raise GitFailed(
                "git_timeout", f"git did not answer within {COMMAND_TIMEOUT_S} s; a hook may wait for input"
            ) from None
        except OSError as error:
            raise GitFailed("vault_unreadable", f"the vault cannot be used: {error.strerror}") from None
        finished = Finished(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
        if check and finished.code:
            raise GitFailed("git_failed", self._reason(finished))
        return finished

    def _reason(self, finished: Finished) -> str:
        """Git's own last words, without this machine's paths."""
        said = (finished.err.strip() or finished.out).splitlines()
        lines = [line.strip() for line in said if line.strip() and not line.startswith(("hint:", "warning:"))]
        text = " / ".join(lines[-4:]).replace(f"{self.root}/", "").replace(str(self.root), "the vault")
        return text[:500] or f"git ended with status {finished.code}"

    def is_repository(self) -> bool:
        """Whether the vault is the top of a repository of its own, not a folder inside somebody else's."""
        return (self.root / ".git").exists() and self.run("rev-parse", "--git-dir", check=False).code == 0

    @cached_property
    def git_dir(self) -> Path:
        return (self.root / self.run("rev-parse", "--git-dir").out.strip()).resolve()

    def init(self) -> bool:
        """Make the repository if there is none; True when it was made."""
        if self.is_repository():
            return False
        self.run("init", "--quiet", "--initial-branch=main")
        return True

    def obstacle(self) -> str:
        """Why nothing may be committed now, in words for a person; '' when nothing is in the way."""
        if any((self.git_dir / name).exists() for name in _UNDER_WAY):
            return "a merge, rebase or cherry-pick is under way in the vault; finish or abort it first"
        if self.run("symbolic-ref", "--quiet", "HEAD", check=False).code:
            return "the vault's HEAD is detached; check out a branch first"
        if self.run("ls-files", "--unmerged").out:
            return "the vault has unresolved conflicts; resolve them first"
        return ""

    def head(self) -> str:
        return self.run("rev-parse", "--verify", "--quiet", "HEAD", check=False).out.strip()

    def dirty(self, *paths: str) -> list[str]:
        """Paths whose content is in no commit, untracked files included."""
        out = self.run("status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--", *paths).out
        return [field[3:] for field in out.split("\0") if len(field) > 3]

    def is_known(self, path: str) -> bool:
        """Whether git tracks the path already."""
        return bool(self.run("ls-files", "-z", "--", path).out)

    def show(self, path: str, rev: str = "HEAD") -> str | None:
        """A file as committed, or None when that revision has none."""
        found = self.run("cat-file", "blob", f"{rev}:{path}", check=False)
        return found.out if found.code == 0 else None

    def commit(self, paths: Sequence[str], message: str, lock: WriteLock) -> str:
        """Commit exactly these paths as they stand in the working tree; '' when nothing differs from HEAD.

        What else is staged or changed stays as it is. Hooks run, and their refusal is reported.

        Raises:
            GitFailed: commit_refused, vault_locked, or why git would not.
        """
        if not self.dirty(*paths):
            return ""
        with lock.in_git():
            fresh = [path for path in paths if (self.root / path).exists() and not self.is_known(path)]
            if fresh:
                self._when_unlocked(lock, "add", "--force", "--", *fresh)
            done = self._when_unlocked(
                lock, *self._identity(), "commit", "--quiet", "--only", "--file=-", "--", *paths, stdin=message
            )
        if done.code:
            raise GitFailed("commit_refused", self._commit_refusal(done))
        return self.head()

    def unstage(self, path: str, lock: WriteLock) -> None:
        """Forget that a never committed file was announced to git; the file itself is the caller's."""
        with lock.in_git():
            self._when_unlocked(lock, "rm", "--cached", "--quiet", "--ignore-unmatch", "--", path)

    def _identity(self) -> list[str]:
        if self.run("config", "user.email", check=False).out.strip() and self.run("config", "user.name", check=False).out.strip():
            return []
        return ["-c", f"user.name={AUTHOR[0]}", "-c", f"user.email={AUTHOR[1]}"]

    def _when_unlocked(self, lock: WriteLock, *args: str, stdin: str = "") -> Finished:
        """Run a command that takes git's locks, waiting for living holders and clearing abandoned files."""
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            held = self._foreign_lock(lock)
            if held is None:
                done = self.run(*args, check=False, stdin=stdin)
                if done.code == 0 or not _LOCKED.search(done.err):
                    return done
            if time.monotonic() >= deadline:
                raise GitFailed("vault_locked", f"another git process has held the vault's lock for more than {LOCK_WAIT_S} s")
            time.sleep(LOCK_POLL_S)

    def _foreign_lock(self, lock: WriteLock) -> Path | None:
        """A git lock file that somebody holds; abandoned ones are removed on the way."""
        candidates = [self.git_dir / "index.lock", self.git_dir / "HEAD.lock", *(self.git_dir / "refs" / "heads").rglob("*.lock")]
        for path in candidates:
            if not path.exists():
                continue
            if not is_abandoned(path, self.root, predecessor_died=lock.predecessor_died):
                return path
            log.warning("memory.git_lock_recovered", lock=path.name, ours=lock.predecessor_died)
            path.unlink(missing_ok=True)
        return None

    def _commit_refusal(self, done: Finished) -> str:
        configured = self.run("config", "core.hooksPath", check=False).out.strip()
        folder = (self.root / Path(configured).expanduser()) if configured else self.git_dir / "hooks"
        hooks = [name for name in _COMMIT_HOOKS if os.access(folder / name, os.X_OK)]
        said = self._reason(done)
        return f"the vault's {' or '.join(hooks)} hook refused the commit: {said}" if hooks else f"git refused the commit: {said}"

    def history(self, path: str | None = None, limit: int = 50) -> list[Commit]:
        """Commits, newest first, of one path or of the vault."""
        if not self.head():
            return []
        form = f"%H%x1f%cI%x1f%an%x1f%s%x1f%(trailers:key={CHANGE_TRAILER},valueonly,separator=%x2C)%x1e"
        args = ["log", f"--max-count={limit}", f"--format={form}", *(["--", path] if path else [])]
        found = []
        for record in self.run(*args).out.split("\x1e"):
            fields = record.strip("\n").split("\x1f")
            if len(fields) == 5:
                found.append(Commit(*fields))
        return found

    def commit_of_change(self, change_id: str) -> str:
        """The commit that carries this change's trailer, or ''."""
        if not self.head():
            return ""
        return self.run(
            "log", "--max-count=1", "--format=%H", "--fixed-strings", f"--grep={CHANGE_TRAILER}: {change_id}"
        ).out.strip()

    def revision(self, text: str) -> str:
        """A full commit id for what a client sent, or '' when it is none of this vault's."""
        if not _REVISION.match(text):
            return ""
        return self.run("rev-parse", "--verify", "--quiet", f"{text}^{{commit}}", check=False).out.strip()

    def diff_of(self, rev: str, path: str) -> str:
        """What one commit did to one path, as a unified diff. ``rev`` comes from :meth:`revision`."""
        return self.run("show", "--format=", "--unified=3", "--no-color", "--no-ext-diff", "--no-textconv", rev, "--", path).out


def _environment() -> dict[str, str]:
    """Ours without any GIT_* variable: a hook or a worktree that started us must not redirect the vault's git."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
