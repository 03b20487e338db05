"""A model repository on the Hub: what will be opened is fetched and checked first, at one commit."""

from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from aotadmm_timm.pretrained.building import hub_refusals
from aotadmm_timm.pretrained.model_folder import check_size, read_config


def fetch_checked(identifier: str) -> str | None:
    """Download and check config.json and the header of the weights of ORG/NAME[@REVISION]; their commit, if known.

    Raises: ModelNotFound; Unreachable if the Hub does not answer and the cache has no copy; as `check_config`.
    """
    repo, _, revision = identifier.partition("@")
    with hub_refusals(f"hf-hub:{identifier}"):
        path = Path(hf_hub_download(repo, "config.json", revision=revision or None))
        config = read_config(path)
        try:
            weights = hf_hub_download(repo, "model.safetensors", revision=revision or None)
        except EntryNotFoundError as err:
            if isinstance(err, LocalEntryNotFoundError):  # not in the cache, and the Hub is out of reach
                raise
        else:
            check_size(config, f"hf-hub:{identifier}", Path(weights))
    return path.parent.name if path.parent.parent.name == "snapshots" else None
