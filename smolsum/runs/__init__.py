"""The run directory: typed records of its files, their writers, and one reader for everything that looks at runs."""
