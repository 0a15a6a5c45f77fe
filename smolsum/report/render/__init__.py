"""A report as HTML, Markdown, LaTeX or JSON; `write` puts it on disk."""
