"""Mirrors of a run in experiment trackers: a process apart from the training reads the run directory and sends what is
new. `follow` decides what a tracker gets, the `to_…` modules speak to one tracker each."""
