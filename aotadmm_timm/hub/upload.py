"""The network half of a push, run as a process of its own so that it can be killed when the Hub stops answering.

Reads one JSON request on stdin; writes JSON lines on stdout: `{"step": ...}` whenever something moved, then one
`{"commit": URL}` or `{"error": TEXT}`. Imports huggingface_hub alone: the process starts in half a second.
The token comes from the environment or the login of huggingface_hub, never from the request or the command line.
"""

import hashlib
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Plain LFS: its bytes can be counted on the way, which is what tells a slow upload from a dead one.
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi, ModelInfo, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

_OUTCOME = "; probably nothing was changed, a retry is safe"  # an answer to the commit request may have been lost


class _Counted(io.BufferedReader):
    """A file that reports, at most once a second, that it is being read."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._reported = 0.0

    def read(self, size: int | None = -1) -> bytes:
        if time.monotonic() - self._reported > 1:
            self._reported = time.monotonic()
            _say(step="sending")
        return super().read(size)


def upload(request: dict[str, Any]) -> str:
    """Put the files of a folder into a model repository with one commit; returns the commit's URL.

    A repository that this call made is removed again if the commit fails, so a failure leaves the remote as it was.
    """
    token = get_token()
    if token is None:
        raise ValueError("no token: log in with `hf auth login` or set HF_TOKEN")
    api = HfApi(token=token, library_name="aotadmm_timm")
    repo, revision = request["repo_id"], request["revision"]
    created = False
    try:
        api.model_info(repo)
    except RepositoryNotFoundError as error:
        if _status(error) == 401:
            raise
        _say(step="making the repository")
        api.create_repo(repo, private=request["private"] or None, exist_ok=False)  # None: the owner's own default
        created = True
    try:
        commit = _commit(api, request, _head(api, repo, revision))
    except Exception:
        if created:
            _remove_if_empty(api, repo)
        raise
    _say(step="checking")
    weights = "model.safetensors"
    try:
        (stored,) = api.get_paths_info(repo, weights, revision=commit.oid)
        digest = getattr(stored, "lfs").sha256  # noqa: B009  (a folder has none, says the type)
    except Exception as error:
        raise ValueError(
            f"{commit.commit_url} was made, but could not be checked: {explain(error, request, '')}"
        ) from error
    if digest != hashlib.sha256((Path(request["folder"]) / weights).read_bytes()).hexdigest():
        raise ValueError(
            f"{commit.commit_url} was made, but the Hub reports another SHA-256 for {weights} than was sent"
        )
    return str(commit.commit_url)


def _head(api: HfApi, repo: str, revision: str | None) -> ModelInfo:
    """The commit to build on; a branch that does not exist is made from main."""
    try:
        return api.model_info(repo, revision=revision)
    except RevisionNotFoundError:
        _say(step="making the branch")
        api.create_branch(repo, branch=str(revision))
        return api.model_info(repo, revision=revision)


def _commit(api: HfApi, request: dict[str, Any], head: ModelInfo) -> CommitInfo:
    folder, names = Path(request["folder"]), list(request["files"])
    existing = {file.rfilename for file in head.siblings or []}
    if not request["overwrite_card"] and "README.md" in existing:
        # The figure belongs to the card: an old card must not show a new run's curve.
        names = [name for name in names if name not in ("README.md", "curves.png")]
        _say(note="the README.md there is kept (--overwrite-card replaces it)")
    operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=_Counted(folder / name)) for name in names]
    _say(step="uploading")
    return api.create_commit(
        request["repo_id"],
        operations,
        commit_message=request["message"],
        revision=request["revision"],
        parent_commit=head.sha,
    )


def _remove_if_empty(api: HfApi, repo: str) -> None:
    """Take back a repository that this process has just made, unless somebody has put a file into it."""
    try:
        if {file.rfilename for file in api.model_info(repo).siblings or []} <= {".gitattributes"}:
            api.delete_repo(repo)
    except Exception:  # the first error is the one to report; an empty repository does not disturb a retry
        _say(note=f"an empty repository {repo} may remain; pushing again fills it")


def explain(error: Exception, request: dict[str, Any], outcome: str = _OUTCOME) -> str:
    """One line that says what happened and what to do; `outcome`: what is known of the remote if no answer says."""
    repo, status = request["repo_id"], _status(error)
    owner = repo.partition("/")[0]
    if isinstance(error, OfflineModeIsEnabled):
        return "offline mode is on; unset HF_HUB_OFFLINE to push"
    if status == 401:
        return "the Hub refused the token (401): it is wrong or expired; log in again with `hf auth login`"
    if status == 403:
        return f"the token may not write to {repo} (403): use one with write access to {owner}"
    if status == 404:
        return f"{repo} or its owner {owner} was not found (404)"
    if status == 409:
        return f"the name {repo} is taken and this token cannot see it (409): choose another"
    if status == 412:
        return f"the branch of {repo} moved while this push ran (412): nothing was changed; push again"
    if status is not None:
        return f"the Hub answered with status {status}{outcome}"
    if (refused := _status(error.__cause__)) is not None:  # the file storage, not the Hub itself
        return f"{' '.join(str(error).split())} The storage answered with status {refused}; nothing was committed"
    if isinstance(error, HFValidationError | ValueError):
        return " ".join(str(error).split())
    reason = " ".join(str(error).split())
    return f"cannot reach {os.environ.get('HF_ENDPOINT', 'the Hub')}: {reason}{outcome}"


def _status(error: BaseException | None) -> int | None:
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def _say(**message: str) -> None:
    print(json.dumps(message), file=sys.__stdout__, flush=True)


def main() -> None:
    sys.stdout = sys.stderr  # what libraries print must not disturb the protocol
    request = json.load(sys.stdin)
    try:
        _say(commit=upload(request))
    except Exception as error:
        _say(error=explain(error, request))


if __name__ == "__main__":
    main()
