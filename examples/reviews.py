"""Short reviews of two classes, generated from templates: what the writer thinks in the end.

Most sentences hold words of both kinds, or a negation, so that counting words does not suffice.
"""

from __future__ import annotations

import numpy as np

NOUNS = (
    *("food", "service", "room", "staff", "film", "acting", "story", "music", "screen", "battery"),
    *("sound", "breakfast", "garden", "coffee", "ending", "camera", "view", "pool", "cake", "book"),
)
GOOD = (
    *("good", "great", "lovely", "excellent", "wonderful", "superb", "pleasant", "perfect"),
    *("charming", "brilliant", "impressive", "fantastic", "fine", "delightful"),
)
BAD = (
    *("bad", "terrible", "awful", "poor", "horrible", "dreadful", "unpleasant", "useless"),
    *("dull", "disappointing", "mediocre", "pathetic", "weak", "disgusting"),
)
PLAIN = (
    "the {noun} was {mine}",
    "we all found the {noun} rather {mine}",
)
NEGATED = (
    "the {noun} was not {other} at all",
    "nobody would call the {noun} {other}",
    "i have never seen a less {other} {noun}",
)
CONTRASTED = (
    "i had expected a {other} {noun} but it was {mine}",
    "my friends called the {noun} {other} , yet it was {mine}",
    "the {noun} was {mine} , whatever people say who found it {other}",
    "it was {mine} , this {noun} , and not {other} as they had told us",
)
TEMPLATES = (*PLAIN, *NEGATED, *CONTRASTED)


def reviews(examples: int, generator: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """Sentences and their labels, +1 for praise and −1 for complaint.

    Parameters
    ----------
    examples : int
    generator : numpy.random.Generator

    Returns
    -------
    sentences : list of str
        All different.
    labels : array, shape (examples,)
    """
    found: dict[str, float] = {}
    while len(found) < examples:
        label = generator.choice([-1.0, 1.0])
        mine, other = (GOOD, BAD) if label > 0 else (BAD, GOOD)
        sentence = generator.choice(TEMPLATES).format(
            noun=generator.choice(NOUNS),
            mine=generator.choice(mine),
            other=generator.choice(other),
        )
        found.setdefault(sentence, label)
    return list(found), np.array(list(found.values()))
