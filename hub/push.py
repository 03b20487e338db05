"""Push a pretrained model with its card to the Hugging Face Hub, in one commit.

    python hub/push.py RUN_OR_CHECKPOINT ORG/NAME            # needs `hf auth login` or HF_TOKEN
    python hub/push.py runs/lejepa ORG/NAME --dry-run out    # look at what would be pushed; no network

Anyone then has it with `import aotadmm_timm, timm; timm.create_model("hf-hub:ORG/NAME", pretrained=True)`.
"""

from dataclasses import dataclass

from aotadmm_timm.cli import option, parse, run


@dataclass(frozen=True)
class Config:
    source: str = option(None, "run folder, model folder, or checkpoint file")
    repo_id: str = option(None, "ORG/NAME on the Hub")
    import_: str | None = option(None, "Python file or module to import first (registers your own models)")
    model: str | None = option(None, "model name, for a checkpoint file outside a run folder")
    license: str | None = option(None, "licence id as the Hub knows it; by default the configuration's")
    dry_run: str | None = option(None, "write the files to this folder instead of pushing them")
    private: bool = option(False, "make a new repository private")
    revision: str | None = option(None, "branch to commit to; made if missing")
    overwrite_card: bool = option(False, "replace a README.md that is already there")
    timeout: float = option(45.0, "give up after this long without a sign of life from the Hub", unit="s")


def main() -> None:
    cfg = parse(Config, description=__doc__, positional=("source", "repo_id"))
    from aotadmm_timm.hub.publish import publish
    from aotadmm_timm.plugin import import_plugin

    if cfg.import_:
        import_plugin(cfg.import_)
    where = publish(
        cfg.source,
        cfg.repo_id,
        model=cfg.model,
        license=cfg.license,
        dry_run=cfg.dry_run,
        private=cfg.private,
        revision=cfg.revision,
        overwrite_card=cfg.overwrite_card,
        timeout=cfg.timeout,
    )
    print(f"written to {where}" if cfg.dry_run else f"pushed: {where}")


if __name__ == "__main__":
    run(main)
