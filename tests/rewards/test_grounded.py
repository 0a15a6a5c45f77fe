"""Names and numbers of a text that its source has: what is seen, what passes, and what is never seen."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smolsum.config.sections import Config
from smolsum.rewards.grounded import SILENT, grounded_reward, score_grounded, starts_sentence, supported_share
from smolsum.types import RolloutGroup

KAYAK = (
    "My brother Noah (31) sold my kayak to Zoe O'Brien for $1,340 last Friday in York. He says that Zoe paid in cash."
)
MODEL = (
    "We train LumoBERT on 12 corpora with long short-term memory. It beats GPT-2 on CIFAR-10 by 3.5%, and needs 7B"
    " parameters less. Generative adversarial networks (GANs) fail."
)

# source, an honest summary, and its corruptions: what is done, the words before, the words after
PAIRS: list[tuple[str, str, list[tuple[str, str, str]]]] = [
    (KAYAK, "My kayak was sold by Noah for $1,340.",
     [("name foreign", "Noah", "Silas"), ("number changed", "1,340", "1,430"), ("unit changed", "$", "€"),
      ("factor added", "$1,340", "$1,340 million")]),
    (KAYAK, "A man of 31 sold it to Zoe on Friday.",
     [("number changed", "31", "13"), ("name foreign", "Zoe", "Ada"), ("day changed", "Friday", "Monday")]),
    (MODEL, "The model LumoBERT beats GPT-2 by 3.5%.",
     [("acronym altered", "GPT-2", "GPT-3"), ("acronym altered", "LumoBERT", "LumoBART"),
      ("number changed", "3.5%", "35%"), ("unit changed", "3.5%", "$3.5")]),
    (MODEL, "An LSTM is better on CIFAR-10 than GANs.",
     [("acronym altered", "LSTM", "LSTN"), ("acronym altered", "CIFAR-10", "CIFAR-100"),
      ("acronym altered", "GANs", "GNNs")]),
    ("The bakery on Hollow Street opens at 6 and sells 240 loaves. Its owner, Mira Tann, is 58.",
     "The owner Mira Tann sells 240 loaves a day.",
     [("name invented", "a day", "a day to Percy"), ("family name foreign", "Tann", "Voss"),
      ("number changed", "240", "420")]),
    ("In 2019 the village of Elm Cross lost its only bus. Two of its 310 people walk to Dunmere now.",
     "Since 2019 people of Elm Cross walk to Dunmere.",
     [("year changed", "2019", "2018"), ("place foreign", "Dunmere", "Halford"),
      ("place altered", "Elm Cross", "Oak Cross")]),
    ("My landlord wants 450 pounds for a broken window. Our lease names Hartley & Sons.",
     "The landlord asks £450, though Hartley is on the lease.",
     [("unit changed", "£", "$"), ("number changed", "450", "540"), ("name foreign", "Hartley", "Bexley")]),
    ("Dr. Osei told us that the dose of Veltorin is 20 mg, taken three times a day.",
     "According to Dr. Osei, 20 mg of Veltorin are taken 3 times.",
     [("name foreign", "Osei", "Quill"), ("number changed", "20", "200"), ("drug altered", "Veltorin", "Veltoxin"),
      ("number changed", "3 times", "4 times")]),
    ("The council of Port Arden will spend 2.4 million euros on a bridge by 2031.",
     "By 2031 a bridge in Port Arden costs €2.4M.",
     [("factor changed", "2.4M", "2.4bn"), ("unit changed", "€", "$"), ("year changed", "2031", "2013"),
      ("place foreign", "Port Arden", "Port Ellis")]),
    ("we adopted a dog named biscuit from the shelter in lowmoor. she is four and weighs 19 kilos.",
     "The dog Biscuit from Lowmoor is 4.",
     [("name foreign", "Biscuit", "Pepper"), ("place foreign", "Lowmoor", "Fenwick"), ("number changed", "4", "5")]),
    ("A study at Wren College followed 1,200 nurses over twenty-five years. Sleep fell by 8 percent.",
     "In a study by Wren College 1200 nurses slept 8% less after 25 years.",
     [("number changed", "1200", "12,000"), ("number changed", "25", "52"), ("number changed", "8%", "18%"),
      ("name foreign", "Wren", "Kestrel")]),
    ("The QDN-4 probe reached Ceres in May. NASA had planned it with JAXA since 2014.",
     "A probe, QDN-4, came to Ceres for NASA.",
     [("acronym altered", "QDN-4", "QDN-5"), ("acronym foreign", "NASA", "ESRO"), ("place foreign", "Ceres", "Vesta")]),
    ("Lena and I booked flat 7B for ten nights. Its host, Mr. Abara, cancelled two hours before.",
     "The host Abara cancelled on Lena after a booking of 10 nights.",
     [("name foreign", "Abara", "Okafor"), ("name foreign", "Lena", "Greta"), ("number changed", "10", "12")]),
    ("PyRove 3.11 drops support for RoveOS. Version 3.10 stays supported until 2028.",
     "Users of RoveOS have PyRove 3.10 until 2028.",
     [("version changed", "3.10", "3.9"), ("term altered", "RoveOS", "RoveBSD"), ("term altered", "PyRove", "RsRove")]),
    ("The choir of Saint Odile sang Brahms. 3 of its 40 singers were ill, and the conductor Ivo Hart wept.",
     "A choir of 40, led by Ivo Hart, sang Brahms.",
     [("name foreign", "Brahms", "Mahler"), ("number changed", "40", "14"), ("name altered", "Ivo", "Ivan")]),
    ("Our team of five lost to the Harriers, 2:1, although Juno scored in the first minute.",
     "The Harriers won 2:1 in spite of Juno.",
     [("number changed", "2:1", "4:1"), ("name foreign", "Harriers", "Badgers"), ("name foreign", "Juno", "Freya")]),
    ("A fund run by Kaspar Lind lost half a billion dollars, or 12 % of its value, on Tuesday.",
     "On Tuesday Kaspar Lind's fund lost 12 percent.",
     [("name altered", "Lind", "Linden"), ("number changed", "12", "21"), ("day changed", "Tuesday", "Thursday"),
      ("unit changed", "12 percent", "12 dollars")]),
]  # fmt: skip
CORRUPTIONS = [(source, summary, before, after) for source, summary, changes in PAIRS for _, before, after in changes]
NAMES_OF_CORRUPTIONS = [f"{n}-{kind}" for n, (_, _, changes) in enumerate(PAIRS) for kind, _, _ in changes]


@pytest.mark.parametrize(("source", "summary"), [pair[:2] for pair in PAIRS])
def test_an_honest_summary_has_all_its_names_and_numbers_from_the_source(source: str, summary: str) -> None:
    assert supported_share(summary, source) == 1


@pytest.mark.parametrize(("source", "summary", "before", "after"), CORRUPTIONS, ids=NAMES_OF_CORRUPTIONS)
def test_each_corruption_is_seen(source: str, summary: str, before: str, after: str) -> None:
    """The corrupted text states something that the source lacks, and is worth less than the honest one."""
    corrupted = summary.replace(before, after)
    assert corrupted != summary
    assert supported_share(corrupted, source) not in (None, 1)
    assert grounded_reward(corrupted, source) < grounded_reward(summary, source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("The GAN of Noah learns.", "So Noah's GANs learn."), ("All Jameses know GANs.", "So James knows a GAN."),
        ("The GANs\u2019 loss of Zoe", "It is Zoe\u2019s GAN\u2019s loss."), ("Noah's theory", "a theory of Noah"),
        ("It runs on CIFAR-10.", "It runs on CIFAR10, or CIFAR 10."), ("We have Py-Torch.", "They have PyTorch."),
        ("It has PyTorch.", "It has Py-Torch."), ("A WordNet-based check", "It asks WordNet."),
        ("We ask wordnet.", "A WordNet-based check"), ("COVID\u201119 came.", "It was COVID-19."),
        ("three dogs, 4 cats", "It has 3 dogs and four cats."), ("a twenty-one-year-old", "She is 21."),
        ("about 40 people", "Of forty people"), ("2 million rows", "It has 2,000,000 rows."),
        ("10,000 rows", "It has 10k rows, or ten thousand."), ("$3M", "They paid three million dollars."),
        ("1 000 000 rows".replace(" ", "\u202f"), "a million, so 1,000,000"), ("p < .05", "below 0.05"),
        ("5 per cent", "It rose by 5%."), ("5%", "It rose by 5."), ("the 2nd of both", "It has 2."),
        ("the second attempt", "It took two attempts."), ("USD 340", "for $340"), ("US$340", "for 340 dollars"),
        ("O'Brien and D\u2019Arcy", "With OBrien came D'Arcy."), ("in the U.S. Army", "of the US Army"),
        ("the caf\u00e9 of Zo\u00eb M\u00fcller", "With Zoe Muller"), ("NOAH SOLD MY KAYAK.", "So Noah sold it."),
        ("a recurrent neural network", "We train an RNN."),
        ("We train many RNNs.", "A Recurrent Neural Network learns."),
        ("\u201cNoah left.\u201d", "It said \u201cNoah left\u201d."), ("a 5m rope", "5 m of rope, 5m long"),
    ],
)  # fmt: skip
def test_a_paraphrase_passes(source: str, text: str) -> None:
    """Singular and plural, possessives, hyphens, notations of numbers, case, accents, quotes, acronyms in full."""
    assert supported_share(text, source) == 1


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", None), ("   ", None), ("He sold it.", None), ("One of them sold it to no one.", None), ("...", None),
        ("I think I'm right, and I've said so.", None),
        # a capital at the start of a sentence is a name only where one stands inside a sentence too
        ("Kayaks were sold. Cash was paid.", None), ("Noah sold it.", 1), ("He left. \u201cNoah sold it.", 1),
        ("Silas sold it.", None), ("Silas sold it, said Silas.", 0), ("- Silas sold it", None), ("LSTMs sold it.", 0),
        # each counts once; several words with capitals are one name, and a wrong one makes it wrong
        ("It was Noah, Noah and Noah, and Silas.", 1 / 2), ("It was Zoe Silas, and Noah.", 1 / 2),
        ("It was Noah, for $1,340 and 7 and 8.", 2 / 4), ("It was Noah, in May.", 1 / 2), ("Will he? It may be.", None),
        # markers of lists are no numbers, and a text in capitals or in lower case has no names
        ("1. it was sold\n2. it was York", 1), ("(1) sold (2) gone", None), ("SILAS SOLD IT FOR 1340", 1),
        ("silas sold it", None), ("silas sold it for 7", 0),
        # a number that a hyphen joins to a name is the name's
        ("It was Noah-31.", 0), ("It was Noah, 31.", 1), ("It was Noah (31).", 1), ("It was Noah (32).", 1 / 2),
        # without capitals there are only numbers
        ("\u4ed6\u572831\u5c81\u65f6\u5356\u4e86\u8239", 1), ("\u4ed6\u572832\u5c81\u65f6\u5356\u4e86\u8239", 0),
    ],
)  # fmt: skip
def test_share_by_hand(text: str, share: float | None) -> None:
    assert supported_share(text, KAYAK) == share


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("My kayak was sold by Zoe to Noah.", "two of the source's names are exchanged"),
        ("It was Noah O'Brien who sold it.", "a name is made of two of the source's"),
        ("So Noah never sold my kayak for $1,340.", "a denial"),
        ("My sister Zoe gave Noah $1,340.", "a relation that the source does not have"),
        ("Noah was 31 and bought it in York.", "a deed without names or numbers of its own"),
        ("It cost -$1,340.", "a sign"),
        ("Silas sold it to Zoe.", "an invented name at the start of the only sentence"),
        ("My brother silas sold it to Zoe.", "an invented name in lower case"),
    ],
)
def test_blind_spots(text: str, why: str) -> None:
    """What is wrong with these texts is not seen."""
    assert supported_share(text, KAYAK) == 1, why


@pytest.mark.parametrize(
    ("text", "source", "why"),
    [
        ("It rose by 4%.", "It rose by 3.9%.", "a rounded number"),
        ("He names three towns.", "He names York, Ripon and Leeds.", "a number that the writer counted"),
        ("We use RL.", "We use reinforcement learning.", "an abbreviation of two letters"),
        ("It came from Britain.", "It was a British ship.", "another word of the same name"),
        ("It cost two hundred and fifty.", "It cost 250.", "words for a number with a remainder"),
        ("It is 3/4 full.", "It is 75% full.", "a fraction"),
    ],
)
def test_false_alarms(text: str, source: str, why: str) -> None:
    """These texts are honest, and count as if they were not."""
    assert supported_share(text, source) not in (None, 1), why


def test_silence_is_worth_less_than_honesty_and_more_than_invention() -> None:
    """No words at all are worth as little as invention, also for a source that has nothing to name."""
    honest, silent, invented = "It was Noah.", "It was sold.", "It was Silas."
    assert grounded_reward(honest, KAYAK) == 1 > grounded_reward(silent, KAYAK) == SILENT
    for source in (KAYAK, "it was sold for cash"):
        assert SILENT == grounded_reward(silent, source) > grounded_reward(invented, source) == 0
        assert [grounded_reward(empty, source) for empty in ("", " \n", "...", "\u201c\u201d")] == [0] * 4


@pytest.mark.parametrize(
    ("text", "word", "starts"),
    [
        ("Noah left.", "Noah", True), ("He left. \u201cNoah?", "Noah", True), ("He left\n\n  * Noah", "Noah", True),
        ("We met Noah", "Noah", False), ("Dr. Noah left", "Noah", False), ("by J. Noah", "Noah", False),
        ("e.g. Noah", "Noah", False), ("He and I. Noah left", "Noah", True), ("so: Noah", "Noah", True),
    ],
)  # fmt: skip
def test_where_a_sentence_starts(text: str, word: str, starts: bool) -> None:
    assert starts_sentence(text, text.index(word)) is starts


@given(st.text(max_size=60), st.text(max_size=60))
def test_arbitrary_text_has_a_value(text: str, source: str) -> None:
    """In [0, 1]; the same again; and what its source says word for word is supported where a source has the whole."""
    share = supported_share(text, source)
    assert share is None or 0 <= share <= 1
    assert supported_share(text, source) == share
    assert supported_share(text, text) in (None, 1)
    assert 0 <= grounded_reward(text, source) <= 1


@given(st.text(alphabet="ABab19 .,-$%'\nk", max_size=40))
def test_a_text_supports_itself(text: str) -> None:
    assert supported_share(text, text) in (None, 1)


def test_the_signal_reads_the_source_of_the_prompt(group: Callable[..., RolloutGroup]) -> None:
    """The source is what the user's last turn says, whatever the references are."""
    asked = group(["It was Noah.", "It was Silas.", "It was sold.", ""])
    asked = replace(asked, prompt=replace(asked.prompt, messages=({"role": "user", "content": KAYAK},), references=()))
    assert score_grounded([asked], Config()) == [[1, 0, SILENT, 0]]
