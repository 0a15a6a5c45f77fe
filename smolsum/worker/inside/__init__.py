"""What runs inside vLLM, in vLLM's own Python: this folder is on its path, and the modules here import nothing of
smolsum."""
