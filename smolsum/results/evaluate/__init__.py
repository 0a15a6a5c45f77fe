"""From a policy and a split to scores: `run.score` completes and measures, `run.evaluate` also asks the judge,
`evaluated_model` finds what to evaluate, `storage` describes the files."""
