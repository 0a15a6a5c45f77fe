"""Rollouts for the trainer: sampled in this process, or by workers over HTTP."""
