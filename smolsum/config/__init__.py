"""Settings: their records, kinds, presets, and the origin of each value."""
