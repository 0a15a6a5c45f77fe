"""What a judge is asked: the four metrics of the study (Table 3), in our words. The judge sees neither the reference
nor the target length: length is measured, not judged."""

from smolsum.types import Criterion

FAITHFULNESS = Criterion(
    "faithfulness",
    (
        "Break the Actual Output into its single claims: who did what, when, where, why, how much.",
        "Look each claim up in the Input. It must be said there or follow directly from it.",
        "Lower the score for each claim that the Input does not support, and more for one that it contradicts, such as "
        "a deed given to another person or a changed number.",
        "Give the highest score only if every claim is supported, and the lowest if the main claims are made up or "
        "contradicted.",
    ),
)
COVERAGE = Criterion(
    "coverage",
    (
        "List the key points of the Input: what it is about, what happened, and what the writer wants or asks.",
        "For each key point decide whether the Actual Output conveys it, in whatever words.",
        "Lower the score for each key point that is left out where a reader would then misunderstand the Input.",
        "Do not lower the score for small details that are left out.",
        "Give the highest score if every key point is conveyed, and the lowest if none is.",
    ),
)
CONCISENESS = Criterion(
    "conciseness",
    (
        "Compare the lengths: the Actual Output should be much shorter than the Input.",
        "Lower the score for anything that is said twice, in the same or in other words.",
        "Lower the score for filler, padding, roundabout phrases and details that a summary does not need.",
        "Give the highest score if no word could be spared, and the lowest if it is as long as the Input or mostly "
        "repetition.",
    ),
)
CLARITY = Criterion(
    "clarity",
    (
        "Judge whether the Actual Output says what it means in plain, direct language.",
        "Check grammar, punctuation and sentences; lower the score for fragments, garbled words and a text that is cut "
        "off.",
        "Lower the score for jargon that is not explained, and for a pronoun that could mean more than one person or "
        "thing.",
        "Judge whether somebody who sees nothing but the Actual Output can follow it.",
        "Give the highest score if it reads easily from the first word to the last, and the lowest if it cannot be "
        "understood.",
    ),
    sees=("completion",),
)
CRITERIA = (FAITHFULNESS, COVERAGE, CONCISENESS, CLARITY)
