"""`smolsum serve-worker`: rollouts over HTTP, sampled with weights that a trainer keeps up to date."""
