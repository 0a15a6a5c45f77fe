"""The training loop, and the lifetime of a run: setup, session, checkpoints, validation, progress."""
