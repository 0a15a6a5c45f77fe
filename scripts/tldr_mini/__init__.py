"""The text of `builtin:tldr-mini`: word lists, sentence patterns and the composer that joins them."""
