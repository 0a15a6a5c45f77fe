"""A reader and grader for tests, behind a real server: it finds a thing's colour in the text that it is shown."""

import json
import re

from support.judge_server import Reply, answer

DOCUMENT = "The car is red. The house is blue. The hat is green."
QUESTIONS = {"What colour is the car?": "red", "What colour is the house?": "blue", "What colour is the hat?": "green"}


def brain(prompt: str, before: int) -> Reply:
    """What it says: answers from the text alone, grades by the expected word, ranks by the number of colours."""
    if prompt.startswith("Answer a question"):
        text = prompt.split("<text>\n")[1].split("\n</text>")[0]
        thing = re.findall(r"colour is the (\w+)\?", prompt)[-1]
        said = re.search(rf"{thing} (?:is|was) (\w+)", text)
        return answer(json.dumps({"answer": f"It is {said[1]}." if said else None}))
    if prompt.startswith("Somebody was asked"):
        expected, given = (re.search(rf"{which} answer: (.*)", prompt) for which in ("Expected", "Given"))
        assert expected
        assert given
        return answer(json.dumps({"right": expected[1] in given[1]}))
    shown = re.findall(r"<summary number=(\d+)>\n(.*?)\n</summary>", prompt, re.S)
    scores = [{"summary": int(n), "score": len(re.findall("red|blue|green", text)) / 3} for n, text in shown]
    return answer(json.dumps({"scores": scores}))
