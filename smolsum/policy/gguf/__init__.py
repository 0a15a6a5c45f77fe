"""GGUF, the format of llama.cpp: a file becomes a model in the Hugging Face layout, and a model becomes a file."""
