"""Line charts for terminals: it knows nothing of runs, and could be a package."""
