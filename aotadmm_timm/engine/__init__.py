"""The training loop and what it stands on: configuration, checkpoints, the run folder."""
