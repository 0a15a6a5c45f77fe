"""Reports: the tables and figures of runs as one page, where every number links to the file that it comes from."""
