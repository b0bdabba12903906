"""The Hugging Face hub as datasets use it: a data set's files fetched, a version's files pushed, with a project's token.

Nothing here retries for minutes: offline is said at once, and a job can be tried again by a person. The token goes to
the hub client and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from mlxplatform.accounts import audit
from mlxplatform.datasets import sealing
from mlxplatform.datasets.models import HubToken

#: Seconds to wait for the hub's first answer before saying that there is no way to it.
FIRST_ANSWER = 10.0

T = TypeVar("T")


class HubError(Exception):
    """Why the hub gave or took nothing, as a sentence for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


OFFLINE = HubError("offline", "The Hugging Face hub cannot be reached from here: this machine seems to be offline.")


def endpoint() -> str | None:
    """The hub's address; None is the client's own."""
    return os.environ.get("HF_ENDPOINT") or None


def forbidden_to_ask() -> bool:
    """Whether the operator has told the client not to go online, which is known without asking anybody."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def keep_token(project: str, token: str, by: str) -> HubToken:
    kept, _ = HubToken.objects.update_or_create(
        project=project, defaults={"sealed": sealing.seal(token), "ends_with": token[-4:], "set_by": by}
    )
    audit.record(by, "hub_token.set", project, project=project, after={"ends_with": kept.ends_with})
    return kept


def forget_token(project: str, by: str) -> bool:
    gone, _ = HubToken.objects.filter(project=project).delete()
    if gone:
        audit.record(by, "hub_token.delete", project, project=project)
    return bool(gone)


def token_of(project: str) -> str | None:
    """The project's token.

    Raises:
        HubError: it was sealed under another secret key.
    """
    kept = HubToken.objects.filter(project=project).first()
    if kept is None:
        return None
    try:
        return sealing.unseal(kept.sealed)
    except sealing.CannotUnseal:
        raise HubError("token_unreadable", "The kept hub token was sealed under another secret key; set it again.") from None


def fetch(repo: str, *, revision: str, patterns: Sequence[str], project: str) -> Path:
    """The folder of a data set's files in the hub's cache, named after the commit they are of.

    Raises:
        HubError
    """
    from huggingface_hub import snapshot_download

    token = token_of(project)
    return _asked(
        repo,
        lambda: Path(
            snapshot_download(
                repo,
                repo_type="dataset",
                revision=revision or None,
                allow_patterns=list(patterns),
                token=token,
                endpoint=endpoint(),
                etag_timeout=FIRST_ANSWER,
            )
        ),
    )


def push(
    repo: str,
    files: Sequence[tuple[str, Path]],
    *,
    project: str,
    private: bool,
    message: str,
    step: Callable[[str], None],
) -> str:
    """Put files into a data set repository, in one commit; the repository is made when there is none.

    Files that are there already are not sent again, and a push that changes nothing makes no commit, so that one that
    was interrupted can be repeated. Returns the commit's address.

    Raises:
        HubError
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    token = token_of(project)
    if token is None:
        raise HubError("no_token", "There is no hub token. Set one with PUT /api/hub/token; it needs the right to write.")
    api = HfApi(endpoint=endpoint(), token=token)
    step("asking the hub")
    _asked(repo, lambda: api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True))
    step(f"sending {len(files)} files")
    operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in files]
    commit = _asked(repo, lambda: api.create_commit(repo, operations, commit_message=message, repo_type="dataset"))
    return str(commit.commit_url)


def _asked(repo: str, question: Callable[[], T]) -> T:
    """The hub's answer, with its many exceptions turned into one."""
    import httpx2
    from huggingface_hub import errors

    name = repo[:100]
    try:
        return question()
    except errors.HFValidationError:
        raise HubError("invalid_name", f"{name} is not the name of a data set (owner/name).") from None
    except errors.GatedRepoError:
        raise HubError(
            "no_access", f"{name} asks for a login: accept its terms on the hub, with the account of the token."
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise HubError("not_found", f"The hub has no data set {name} of that revision that this token may see.") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        raise _refused(name, status) from None
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, httpx2.TransportError, ConnectionError, TimeoutError):
        raise OFFLINE from None
    except (RuntimeError, OSError):  # an upload that broke off
        raise HubError("upload_failed", f"Sending the files to {name} broke off; try again.") from None
    except ValueError as error:  # what the hub finds wrong with a card's front matter
        raise HubError("hub_refused", f"The hub refused the files: {str(error)[:300]}") from None


def _refused(name: str, status: int) -> HubError:
    if status == 401:
        return HubError("bad_token", "The hub does not accept the token; set a valid one with PUT /api/hub/token.")
    if status == 403:
        return HubError("no_access", f"The token may not write to {name}.")
    return HubError("hub_refused", f"The hub answered {status} for {name}.")
