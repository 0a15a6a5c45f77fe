"""From run directories to a publishable page: tables, figures and the files that every number comes from."""
