"""`smolsum serve-worker`: rollouts over HTTP, from weights that a trainer keeps up to date."""
