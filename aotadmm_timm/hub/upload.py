"""A folder pushed to a model repository on the Hub, in one commit, with a limit on the Hub's silence.

Measured on a Hub that accepts requests and never answers: every route of a push ends within the limit and a fraction of
a second; left to huggingface_hub, some wait without end and others are tried six times over.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi, ModelInfo, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import logging

from aotadmm_timm.errors import Unreachable, UserError
from aotadmm_timm.pretrained.hub_requests import Silence, limited_silence

WEIGHTS, CARD, FIGURE = "model.safetensors", "README.md", "curves.png"
_CLEANUP_SECONDS = 5.0
_OUTCOME = "; probably nothing was changed, a retry is safe"  # an answer to the commit request may have been lost


@dataclass
class Push:
    """One push.

    Attributes:
        folder: its files are pushed.
        repo_id: ORG/NAME, made if missing.
        message: of the commit.
        private: make a new repository private; by default its owner's setting decides.
        revision: branch to commit to; made from main if missing.
        overwrite_card: replace a README.md that is already there.
        timeout: seconds of silence after which the Hub is given up.
        step: what is being done, for messages.
        notes: what the user should know of a push that went well.
    """

    folder: Path
    repo_id: str
    message: str
    private: bool = False
    revision: str | None = None
    overwrite_card: bool = False
    timeout: float = 45.0
    step: str = "connecting"
    notes: list[str] = field(default_factory=list)

    def run(self) -> str:
        """Push; returns the commit's URL.

        A repository that this call made is removed again if the commit fails, so a failure leaves the remote as it was.
        The token comes from the environment or the login of huggingface_hub.

        Raises: Unreachable for a Hub that is silent, out of reach or in trouble; UserError for what it refuses.
        """
        token = get_token()
        if token is None:
            raise UserError("push failed: no token: log in with `hf auth login` or set HF_TOKEN")
        self.endpoint = os.environ.get("HF_ENDPOINT")
        self.api = HfApi(endpoint=self.endpoint, token=token, library_name="aotadmm_timm")
        with limited_silence(self.timeout), _quiet():
            try:
                return self._push()
            except UserError:
                raise
            except Exception as err:
                raise self._refusal(err, _OUTCOME) from err

    def _push(self) -> str:
        created = self._make_repository()
        try:
            commit = self._commit(self._head())
        except Exception:
            if created:
                self._remove_if_empty()
            raise
        self.step = "checking"
        try:
            (stored,) = self.api.get_paths_info(self.repo_id, WEIGHTS, revision=commit.oid)
            digest = getattr(stored, "lfs").sha256  # noqa: B009  (a folder has none, says the type)
        except Exception as err:
            why = str(self._refusal(err, "")).removeprefix("push failed: ")
            raise UserError(f"push failed: {commit.commit_url} was made, but could not be checked: {why}") from err
        if digest != hashlib.sha256((self.folder / WEIGHTS).read_bytes()).hexdigest():
            raise UserError(
                f"push failed: {commit.commit_url} was made, but the Hub reports another SHA-256 for {WEIGHTS} than "
                "was sent"
            )
        return str(commit.commit_url)

    def _make_repository(self) -> bool:
        """Whether there was none, and this call made it."""
        try:
            self.api.model_info(self.repo_id)
            return False
        except RepositoryNotFoundError as err:
            if _status(err) == 401:
                raise
        self.step = "making the repository"
        self.api.create_repo(self.repo_id, private=self.private or None, exist_ok=False)
        return True

    def _head(self) -> ModelInfo:
        """The commit to build on; a branch that does not exist is made from main."""
        try:
            return self.api.model_info(self.repo_id, revision=self.revision)
        except RevisionNotFoundError:
            self.step = "making the branch"
            self.api.create_branch(self.repo_id, branch=str(self.revision))
            return self.api.model_info(self.repo_id, revision=self.revision)

    def _commit(self, head: ModelInfo) -> CommitInfo:
        names = sorted(file.name for file in self.folder.iterdir())
        existing = {file.rfilename for file in head.siblings or []}
        if not self.overwrite_card and CARD in existing:
            # The figure belongs to the card: an old card must not show a new run's curve.
            names = [name for name in names if name not in (CARD, FIGURE)]
            self.notes.append(f"the {CARD} there is kept (--overwrite-card replaces it)")
        self.step = "uploading"
        with ExitStack() as files:
            # Open files go by plain LFS requests, on which the limit of silence holds; file names would go by hf_xet,
            # which makes its own.
            operations = [
                CommitOperationAdd(name, files.enter_context((self.folder / name).open("rb"))) for name in names
            ]
            return self.api.create_commit(
                self.repo_id,
                operations,
                commit_message=self.message,
                revision=self.revision,
                parent_commit=head.sha,
            )

    def _remove_if_empty(self) -> None:
        """Take back a repository that this push has just made, unless somebody has put a file into it."""
        try:
            with limited_silence(min(self.timeout, _CLEANUP_SECONDS)):
                if {file.rfilename for file in self.api.model_info(self.repo_id).siblings or []} <= {".gitattributes"}:
                    self.api.delete_repo(self.repo_id)
        except Exception:  # the first error is the one to report; an empty repository does not disturb a retry
            self.notes.append(f"an empty repository {self.repo_id} may remain; pushing again fills it")

    def _refusal(self, err: Exception, outcome: str) -> UserError:
        """One line that says what happened and what to do; `outcome`: what is known of the remote if no answer says."""
        kind, text = explain(err, self, outcome)
        return kind(f"push failed: {text}")


def explain(err: BaseException, push: Push, outcome: str) -> tuple[type[UserError], str]:
    """The kind of a failure, and what to tell the user of it."""
    repo, status, owner = push.repo_id, _status(err), push.repo_id.partition("/")[0]
    host, reason = push.endpoint or "the Hub", " ".join(str(err).split())
    refused = {
        401: "the Hub refused the token (401): it is wrong or expired; log in again with `hf auth login`",
        403: f"the token may not write to {repo} (403): use one with write access to {owner}",
        404: f"{repo} or its owner {owner} was not found (404)",
        409: f"the name {repo} is taken and this token cannot see it (409): choose another",
        412: f"the branch of {repo} moved while this push ran (412): nothing was changed; push again",
    }
    if any(isinstance(each, Silence) for each in (err, err.__cause__)):
        return Unreachable, (
            f"{host} was silent for {push.timeout:g} s while {push.step}; the branch is unchanged unless the commit "
            "was already under way, and pushing again is safe"
        )
    if isinstance(err, OfflineModeIsEnabled):
        return Unreachable, "offline mode is on; unset HF_HUB_OFFLINE to push"
    if status is not None:
        kind = UserError if status in refused else Unreachable
        return kind, refused.get(status, f"the Hub answered with status {status}{outcome}")
    if (status := _status(err.__cause__)) is not None:  # the file storage, not the Hub itself
        return UserError, f"{reason} The storage answered with status {status}; nothing was committed"
    if isinstance(err, HFValidationError | ValueError):
        return UserError, reason
    return Unreachable, f"cannot reach {host}: {reason}{outcome}"


def _status(err: BaseException | None) -> int | None:
    return err.response.status_code if isinstance(err, HfHubHTTPError) else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without huggingface_hub's remarks on retries and on hf_xet, which is left out on purpose."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
