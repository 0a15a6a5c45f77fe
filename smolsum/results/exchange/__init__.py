"""Evaluations in the forms of other tools, for readers that do not have smolsum."""
