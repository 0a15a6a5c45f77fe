"""From a policy and a split to scores: `run.score` completes and measures, `run.evaluate` also asks the judge, `target`
finds what to evaluate, `storage` describes the files."""
