"""What completions are worth: evaluations and their judges, comparisons, reports."""
