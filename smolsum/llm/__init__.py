"""Asking a model behind an OpenAI-compatible endpoint, whoever asks: endpoint.py over HTTP, attempts.py in time and
often enough, cache.py never twice."""
