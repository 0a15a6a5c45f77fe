"""Many configurations as one command: which are meant, which are there already, and the rest one after another."""
