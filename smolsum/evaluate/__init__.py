"""From a policy and a split to numbers."""
