"""A model repository on the Hub: what will be opened is fetched and checked first, at one commit."""

import os
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from aotadmm_timm.pretrained.hub_requests import Silence, hub_refusals, limited_silence
from aotadmm_timm.pretrained.model_folder import check_size, read_config

_SILENCE = 20.0  # seconds for the first answer; huggingface_hub alone waits for six minutes


def fetch_checked(identifier: str) -> str | None:
    """Download and check config.json and the header of the weights of ORG/NAME[@REVISION]; their commit, if known.

    A Hub that is silent is no hindrance to what is in the cache.

    Raises: ModelNotFound; Unreachable if the Hub does not answer and the cache has no copy; as `check_config`.
    """
    repo, _, asked = identifier.partition("@")
    with hub_refusals(f"hf-hub:{identifier}"):
        try:
            with limited_silence(_SILENCE):
                path = _file(repo, "config.json", asked)
        except Silence:
            path = _file(repo, "config.json", asked, cached=True)
        config = read_config(path)
        revision = path.parent.name if path.parent.parent.name == "snapshots" else None
        try:
            weights = _file(repo, "model.safetensors", revision or asked)
        except EntryNotFoundError as err:
            if isinstance(err, LocalEntryNotFoundError):  # not in the cache, and the Hub is out of reach
                raise
        else:
            check_size(config, f"hf-hub:{identifier}", weights)
    return revision


def _file(repo: str, name: str, revision: str, *, cached: bool = False) -> Path:
    endpoint = os.environ.get("HF_ENDPOINT")
    return Path(hf_hub_download(repo, name, revision=revision or None, endpoint=endpoint, local_files_only=cached))
