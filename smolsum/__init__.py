"""Train tiny language models to obey a hard output constraint with GRPO."""
