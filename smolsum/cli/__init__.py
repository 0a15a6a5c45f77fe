"""The command line: a module for each command. `main` parses, `options` declares shared flags."""
