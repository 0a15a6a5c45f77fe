"""Copies of run directories at any fsspec URL: `store` reads and writes the URL and brings runs back, `upload` copies a
run while it trains."""
