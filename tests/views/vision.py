"""Colours as seen with the three common deficiencies, and distances between them.

The matrices act on linear light: Machado, Oliveira and Fernandes, IEEE TVCG 15 (2009), severity 1.
"""

import numpy as np

from pathkernel_views.colours import linear_light, oklab

DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def distance(one, other, deficiency):
    """Distance of two colours in Oklab, where black and white are 1 apart."""
    matrix = np.asarray(DEFICIENCIES[deficiency])
    seen = [oklab((matrix @ linear_light(colour)).clip(0, 1)) for colour in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))
