"""What the posts of tldr-mini are about: people, places, things, numbers. All written for this project."""

from __future__ import annotations


def _listed(text: str) -> list[str]:
    return text.split(", ")


FEMALE = _listed(
    "Ada, Alma, Amira, Anouk, Beatrix, Bettina, Bronwyn, Carla, Celeste, Chiara, Clio, Daphne, Delia, Edith, "
    "Elke, Esme, Farah, Fiona, Freya, Gita, Greta, Hana, Hedda, Ilse, Imani, Ingrid, Isla, Jolene, Judit, "
    "Kaja, Keiko, Lena, Leonie, Lucia, Mabel, Maren, Maya, Mina, Nadia, Nell, Noor, Odile, Olga, Paloma, "
    "Petra, Priya, Quinn, Ramona, Rosa, Ruth, Saskia, Selma, Sofia, Tamsin, Thea, Uma, Vera, Wilma, Yara, "
    "Zelda"
)
MALE = _listed(
    "Abel, Adrian, Ahmed, Anton, Arlo, Basil, Bruno, Caleb, Cedric, Cyrus, Dario, Desmond, Dmitri, Edgar, "
    "Emil, Enzo, Felix, Fergus, Gideon, Gustav, Hakim, Hector, Hugo, Igor, Ivan, Jasper, Joel, Jonas, Karim, "
    "Kasper, Lars, Leo, Linus, Lorenz, Magnus, Malik, Marco, Milo, Nils, Noah, Omar, Oscar, Otto, Pablo, "
    "Percy, Rafael, Ravi, Rolf, Rufus, Samir, Silas, Sven, Tariq, Theo, Tobias, Umar, Victor, Walter, Yusuf, "
    "Zeno"
)
# relation -> the gender that it allows
RELATIONS = {
    "sister": "f", "aunt": "f", "niece": "f", "wife": "f", "girlfriend": "f", "stepmother": "f",
    "brother": "m", "uncle": "m", "nephew": "m", "husband": "m", "boyfriend": "m", "stepfather": "m",
    "cousin": "fm", "roommate": "fm", "neighbour": "fm", "coworker": "fm", "boss": "fm", "landlord": "fm",
    "classmate": "fm", "teammate": "fm", "tutor": "fm", "friend": "fm",
}  # fmt: skip
TOWNS = _listed(
    "Aldbrook, Ashmere, Belcombe, Brenford, Calder, Cranholt, Dunmore, Eastvale, Elmhurst, Fairlow, Fenwick, "
    "Garrow, Glenside, Hartwell, Haverly, Inverley, Kelmore, Kingsford, Larkhill, Linden, Marlow, Millgate, "
    "Northam, Oakridge, Orwell, Pinewood, Queensby, Ravenna, Redcliff, Rosedale, Saltburn, Selwick, "
    "Stanmore, Thornby, Upton, Vernham, Westbury, Whitby, Wolford, Yarrow"
)
JOBS = _listed(
    "nurse, baker, driver, teacher, plumber, cook, librarian, welder, gardener, cashier, tailor, painter, "
    "mechanic, waiter, barber, clerk, carpenter, farmer, dentist, singer"
)
ITEMS = _listed(
    "bike, laptop, guitar, camera, couch, phone, fridge, tent, kayak, printer, piano, drone, sofa, scooter, "
    "watch, necklace, mirror, lamp, jacket, blender, television, telescope, violin, carpet, bookcase, canoe, "
    "heater, projector, suitcase, trumpet"
)
PETS = _listed("cat, dog, parrot, rabbit, hamster, turtle, goat, ferret")
EVENTS = _listed(
    "wedding, graduation, birthday, reunion, recital, banquet, housewarming, christening, retirement party, "
    "gala dinner, school play, marathon"
)
FOODS = _listed("lasagna, curry, cake, stew, soup, pie, paella, salad")
DAYS = _listed("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = _listed("January, March, April, June, July, August, October, November")
TIMES = (
    *(f"last {day}" for day in DAYS),
    *(f"in {month}" for month in MONTHS),
    "two weeks ago", "three weeks ago", "four days ago", "a month ago", "six months ago", "yesterday",
)  # fmt: skip
DURATIONS = _listed(
    "two years, three years, four years, five years, six years, eight years, nine years, ten years, "
    "twelve years, seven months, eleven months, twenty years"
)
WAITS = _listed("two days, three days, five days, one week, two weeks, three weeks, six weeks, two months")


def amounts() -> list[str]:
    """Sums of money from $20 to $4800, as they stand in a post."""
    return [f"${n}" for n in (*range(20, 100, 5), *range(100, 1000, 20), *range(1000, 5000, 200))]
