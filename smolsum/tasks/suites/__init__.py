"""Public benchmarks as tasks that measure and never train, each in a module with the name of the suite."""
