"""Episodes of made-up tokens."""

import numpy as np
import pytest
from made_up_networks import TOKENS, WIDTHS


@pytest.fixture
def episodes():
    """Token sequences (12, 4, 5) and labels ±1."""
    generator = np.random.default_rng(3)
    return generator.normal(size=(12, TOKENS, WIDTHS[2])), np.repeat([1.0, -1.0], 6)
