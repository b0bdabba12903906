"""The vault as a folder: its layout, safe names, and reading and writing pages.

Only this module turns a page's name into a path. A stem that is not a plain file name, or a page that is a
link to somewhere else, is refused, so nothing a model or a client says leads out of the folder.
"""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from django.conf import settings

from mlxplatform.memory.git import Git, GitFailed
from mlxplatform.memory.locks import FileLock, WriteLock
from mlxplatform.memory.models import Vault
from mlxplatform.memory.policy_pages import GITIGNORE, PAGES, POLICY_LIMIT, README

ARTICLES, META, TALK, REFERENCE = "articles", "Meta", "Talk", "Reference"
FOLDERS = (ARTICLES, META, TALK, REFERENCE)
#: Longest stem in UTF-8 bytes: file systems allow 255 for the name with its ending.
STEM_BYTES = 200
#: Ending of a page being written; never committed, swept at the next write.
PART = ".mlxp-part"


class UnsafeName(ValueError):
    """The name is no page's name."""


@dataclass(frozen=True)
class Setup:
    created: tuple[str, ...]
    git_initialized: bool

    @property
    def already_set_up(self) -> bool:
        return not self.created and not self.git_initialized


def root_of(vault: Vault) -> Path:
    return Path(settings.ENV.home) / "memory" / vault.folder


class Wiki:
    """One vault on disk."""

    def __init__(self, root: Path):
        self.root = root
        self.git = Git(root)
        self.write_lock = WriteLock(root.parent / f".{root.name}.write.lock")

    @classmethod
    def of(cls, vault: Vault) -> Wiki:
        return cls(root_of(vault))

    def run_lock(self) -> FileLock:
        """One synthesis run at a time; separate from the write lock, so that people can review meanwhile."""
        return FileLock(self.root.parent / f".{self.root.name}.run.lock")

    @cached_property
    def exists(self) -> bool:
        return (self.root / ".git").exists() and (self.root / ARTICLES).is_dir()

    def set_up(self) -> Setup:
        """Create what is missing and never overwrite; a first commit only when there was no repository.

        Raises:
            GitFailed: git is missing, or the folder cannot be written.
        """
        wanted = {".gitignore": GITIGNORE, "README.md": README}
        wanted |= {f"{META}/{name}.md": f"# {name.replace('_', ' ')}\n\n{text}\n" for name, text in PAGES.items()}
        created: list[str] = []
        with self.writing():
            try:
                for folder in FOLDERS:
                    (self.root / folder).mkdir(parents=True, exist_ok=True)
                for path, text in wanted.items():
                    if not (self.root / path).exists():
                        (self.root / path).write_text(text, encoding="utf-8", newline="\n")
                        created.append(path)
            except OSError as error:
                raise GitFailed("vault_unwritable", f"the vault cannot be written: {error.strerror}") from None
            fresh = self.git.init()
            if fresh or (created and not self.git.head()):
                paths = self.git.dirty(".gitignore", "README.md", *FOLDERS)
                self.git.commit(paths, "memory: set up the vault\n", self.write_lock)
        self.__dict__.pop("exists", None)
        return Setup(tuple(created), fresh)

    def writing(self, wait_s: float = 60.0) -> WriteLock:
        """The taken write lock, as a context manager."""
        lock = WriteLock(self.write_lock.path)
        try:
            lock.acquire(wait_s)
        except OSError as error:
            raise GitFailed("vault_unwritable", f"the vault cannot be locked: {error.strerror}") from None
        self.write_lock = lock
        return lock

    def relative(self, stem: str, folder: str = ARTICLES) -> str:
        """Path of a page inside the vault.

        Raises:
            UnsafeName: not a plain name.
        """
        safe = unicodedata.normalize("NFC", stem) == stem and stem not in {"", ".", ".."} and not stem.startswith((".", "-", "~"))
        if not safe or set(stem) & set('/\\:*?"<>|\0[]#^') or not stem.isprintable() or len(stem.encode()) > STEM_BYTES:
            raise UnsafeName("this is not the name of a page")
        return f"{folder}/{stem}.md"

    def path(self, stem: str, folder: str = ARTICLES) -> Path:
        """Absolute path of a page that is a plain file in its own folder, or does not exist yet.

        Raises:
            UnsafeName: not a plain name, or a link.
        """
        path = self.root / self.relative(stem, folder)
        if path.is_symlink() or path.parent.is_symlink():
            raise UnsafeName("this page is a link to somewhere else and is left alone")
        return path

    def stems(self, folder: str = ARTICLES) -> list[str]:
        directory = self.root / folder
        if not directory.is_dir():
            return []
        names = (
            unicodedata.normalize("NFC", path.stem) for path in directory.glob("*.md") if path.is_file() and not path.is_symlink()
        )
        return sorted(name for name in names if self._is_name(name))

    def _is_name(self, stem: str) -> bool:
        try:
            self.relative(stem)
        except UnsafeName:
            return False
        return True

    def spelled(self, stem: str) -> str:
        """The existing stem that a case-insensitive disk would take for this one, or the stem itself."""
        return next((known for known in self.stems() if known.casefold() == stem.casefold()), stem)

    def read(self, stem: str, folder: str = ARTICLES) -> str | None:
        """A page's text, or None when there is none. Bytes that are no UTF-8 make the page unreadable, never rewritten."""
        try:
            return self.path(stem, folder).read_bytes().decode("utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            raise UnsafeName("this page is not valid UTF-8 and is left alone") from None

    def pages(self, folder: str = ARTICLES) -> dict[str, str]:
        """Every readable page of a folder."""
        found: dict[str, str] = {}
        for stem in self.stems(folder):
            try:
                text = self.read(stem, folder)
            except UnsafeName:
                continue
            if text is not None:
                found[stem] = text
        return found

    def write(self, stem: str, text: str | None, folder: str = ARTICLES) -> None:
        """Put a page in place by one rename, or take it away (None). The write lock is held.

        Raises:
            GitFailed: the folder cannot be written.
        """
        path = self.path(stem, folder)
        try:
            if text is None:
                path.unlink(missing_ok=True)
                return
            part = path.with_name(path.name + PART)
            with open(part, "w", encoding="utf-8", newline="\n") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            part.replace(path)
        except OSError as error:
            raise GitFailed("vault_unwritable", f"the vault cannot be written: {error.strerror}") from None

    def policy(self, name: str) -> str:
        """What a policy page says, without its title, cut to what a prompt can bear; '' when there is none."""
        try:
            text = self.read(name, META) or ""
        except UnsafeName:
            return ""
        body = text.split("\n", 1)[1] if text.startswith("# ") and "\n" in text else text
        return body.strip()[:POLICY_LIMIT]
