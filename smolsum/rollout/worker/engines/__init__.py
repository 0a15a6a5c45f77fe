"""The engines that sample behind a worker: `mlx` in its process, `vllm` in a child process."""
