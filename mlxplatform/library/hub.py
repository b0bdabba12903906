"""Bringing models from the Hugging Face hub into its cache, where the library finds them.

Only the files an MLX engine reads are fetched: safetensors, JSON, text; never pickles or code. Interrupted
downloads continue where they stopped (the hub client keeps partial files and checks sizes and hashes).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxplatform.library import local_models
from mlxplatform.library.publication import is_model_id

ALLOW = ["*.safetensors", "*.json", "*.txt", "*.jinja", "tokenizer.model", "*.tiktoken", "README.md", "LICENSE*"]
#: Seconds to wait for the hub's first answer before saying that there is no way to it.
FIRST_ANSWER = 10.0
#: Files of this size and above are fetched so that a later attempt goes on where this one stopped, bytes.
RESUMABLE = 8 << 20
#: Longest name of a repository on the hub.
_MAX_NAME = 96
#: Statuses of the hub that pass by themselves, besides all from 500.
_PASSING = {408, 425, 429}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOCK_NAME = re.compile(r"[^A-Za-z0-9._-]")


class HubError(Exception):
    """Why nothing was fetched, as a sentence for a person."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Snapshot:
    repo: str
    revision: str
    bytes: int


def is_repository(name: object) -> bool:
    """Whether a repository of the hub can have this name at all."""
    if not isinstance(name, str) or not is_model_id(name) or len(name) > _MAX_NAME or name.count("/") != 1:
        return False
    return "--" not in name and not name.endswith(".git") and not any(part.endswith(("-", ".")) for part in name.split("/"))


def pull(
    repo: str,
    *,
    revision: str = "main",
    locks: Path | None = None,
    on_plan: Callable[[int, int], None] | None = None,
    on_file: Callable[[str, int, int], None] | None = None,
) -> Snapshot:
    """Fetch a model repository into the hub cache. ``on_plan(files, bytes)`` comes first,
    ``on_file(name, done_bytes, total_bytes)`` after each file.

    Raises:
        HubError: not a repository name, offline, not found, no access, or somebody else is pulling it.
    """
    if not is_repository(repo):
        raise HubError("bad_repo", "A hub model is named owner/name.")
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.utils import filter_repo_objects

    with _OneAtATime(repo, locks):
        info = _asked(repo, lambda: HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=FIRST_ANSWER))
        siblings = {file.rfilename: file.size or 0 for file in info.siblings or []}
        # config.json comes last: without it the library does not list a model that is still arriving.
        wanted = filter_repo_objects(siblings, allow_patterns=ALLOW)
        names = sorted(wanted, key=lambda name: (name == "config.json", siblings[name]))
        if not any(name.endswith(".safetensors") for name in names):
            raise HubError("no_safetensors", f"{repo} has no safetensors weights, and other formats are not loaded.")
        total, done = sum(siblings[name] for name in names), 0
        if on_plan is not None:
            on_plan(len(names), total)
        _require_room(repo, info.sha or revision, {name: siblings[name] for name in names})
        for name in names:
            if siblings[name] >= RESUMABLE:
                _asked(repo, lambda name=name: _fetch_blob(repo, name, info.sha))  # type: ignore[misc]
            _asked(repo, lambda name=name: hf_hub_download(repo, name, revision=info.sha))  # type: ignore[misc]
            done += siblings[name]
            if on_file is not None:
                on_file(name, done, total)
        return Snapshot(repo, info.sha or revision, total)


def _require_room(repo: str, revision: str, files: dict[str, int]) -> None:
    """
    Raises:
        HubError: the disk has no room for what is still to come; a full one would stop everything else here too.
    """
    folder = local_models.hub_cache() / f"models--{repo.replace('/', '--')}"
    missing = sum(size for name, size in files.items() if not (folder / "snapshots" / revision / name).exists())
    missing -= sum(partial.stat().st_size for partial in (folder / "blobs").glob("*.resumable.incomplete"))
    local_models.hub_cache().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(local_models.hub_cache()).free
    if missing > free:
        gib = 1 << 30
        raise HubError(
            "no_space", f"The download needs {missing / gib:.1f} GiB more, and the disk has {free / gib:.1f} GiB free."
        )


def _fetch_blob(repo: str, name: str, revision: str) -> None:
    """Bring a large file's content to where the hub client will find it.

    The client itself starts a large file anew in every process. We hold the repository's lock, so one partial
    file per content is safe; it is checked against the hub's SHA-256 before it gets its name.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(repo, name, revision=revision)
    about = get_hf_file_metadata(url)
    etag, size = about.etag, about.size
    if etag is None or size is None or not _SHA256.fullmatch(etag):
        return  # nothing to check it by: left to the client
    blob = local_models.hub_cache() / f"models--{repo.replace('/', '--')}" / "blobs" / etag
    if blob.exists():
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    partial = blob.with_suffix(".resumable.incomplete")
    with partial.open("ab") as out:
        have = out.tell()
        if have > size:  # of another writer, or of a disk that lost its place
            have = out.truncate(0)
        if have < size:
            http_get(about.location, out, resume_size=have, headers=build_hf_headers(), expected_size=size)
    with partial.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
        os.fsync(written.fileno())  # nobody checks it again under its name
    if digest != etag:
        partial.unlink()
        raise HubError("corrupt", f"{name} of {repo} arrived damaged and was thrown away; try again.")
    partial.rename(blob)


def search(query: str, limit: int = 30) -> list[dict[str, Any]]:
    """Models for MLX on the hub, most downloaded first.

    Raises:
        HubError: the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi

    def ask() -> list[Any]:
        return list(HfApi().list_models(search=query, filter="mlx", sort="downloads", limit=limit))

    found = _asked(query, ask)
    return [{"id": model.id, "downloads": model.downloads, "likes": model.likes, "tags": model.tags or []} for model in found]


def is_pulling(repo: str, locks: Path | None = None) -> bool:
    """Whether some process brings this repository now."""
    if not _lock_of(repo, locks).exists():
        return False
    try:
        with _OneAtATime(repo, locks):
            return False
    except HubError:
        return True


def alone_with(repo: str) -> AbstractContextManager[None]:
    """Keep every pull of this repository out meanwhile.

    Raises:
        HubError: on entering, when it is being pulled.
    """
    return _OneAtATime(repo, None)


class _OneAtATime(AbstractContextManager[None]):
    """A lock per repository, so that two pulls never fetch the same files side by side."""

    def __init__(self, repo: str, locks: Path | None) -> None:
        path = _lock_of(repo, locks)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "w")

    def __enter__(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise HubError("busy", "That model is being downloaded already.") from None

    def __exit__(self, *failure: object) -> None:
        self._file.close()


def _lock_of(repo: str, locks: Path | None) -> Path:
    return (locks or local_models.hub_cache() / ".pulls") / _LOCK_NAME.sub("--", repo)


def _asked(repo: str, question: Callable[[], Any]) -> Any:
    """The hub's answer, with its many exceptions turned into one."""
    import httpx2
    from huggingface_hub import errors

    try:
        return question()
    except errors.GatedRepoError:
        raise HubError("no_access", f"{repo} asks for a login: accept its licence and run `hf auth login`.") from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise HubError("not_found", f"The hub has no model {repo} of that revision.") from None
    except errors.LocalEntryNotFoundError as error:  # what the client says when asking about a file failed, however it failed
        raise _refused(error.__cause__) if isinstance(error.__cause__, errors.HfHubHTTPError) else _offline() from None
    except (errors.OfflineModeIsEnabled, httpx2.TransportError, ConnectionError, TimeoutError):
        raise _offline() from None
    except errors.HfHubHTTPError as error:
        raise _refused(error) from None
    except OSError as error:
        raise HubError("cannot_write", f"The download cannot be written: {error.strerror or 'input/output error'}.") from None
    except (ValueError, TypeError, KeyError, AttributeError):  # the client believes whatever answers at the hub's address
        raise HubError("hub_error", "What answers in the hub's place is not the hub: the network may ask for a login.") from None


def _offline() -> HubError:
    return HubError("offline", "The Hugging Face hub cannot be reached: this machine seems to be offline.")


def _refused(error: Any) -> HubError:
    """A status as a sentence, and as a code that says whether another try may help."""
    status = error.response.status_code if error.response is not None else 0
    said = f"The Hugging Face hub answered with status {status or 'unknown'}"
    if status == 429:
        return HubError("hub_error", f"{said}: too many requests came from here; it goes on a little later.")
    if status in {401, 403}:
        return HubError("no_access", f"{said}: it asks for a login or another one; run `hf auth login`.")
    return HubError("hub_error" if not status or status >= 500 or status in _PASSING else "hub_refused", f"{said}.")
