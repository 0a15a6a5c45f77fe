"""Served weights as lossless patches from the trainer to the workers."""
