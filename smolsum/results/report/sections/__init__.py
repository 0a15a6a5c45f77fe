"""The tables and figures of a report, by subject. `paper` has what only the study has; the others serve every task."""
