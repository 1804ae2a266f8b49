"""Attributes of other types than a run writes are told by name."""

import json

import pytest
import xarray as xr

from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.run.run_study import compute_study
from pathkernel_datasets.testing import SMALL_STUDY
from pathkernel_datasets.variables.template_faults import identity_fault, template_fault


@pytest.fixture(scope="module")
def attributes(tmp_path_factory):
    """Attributes of a study of a run."""
    path = tmp_path_factory.mktemp("study") / "study"
    compute_study(SMALL_STUDY, path, analyses=())
    with open_study(path) as dataset:
        return dict(dataset.attrs)


WRONG = {
    "heads_per_layer": ({}, "2", [2.0], [0], [True], [-1], [[2]]),
    "variances": ({}, "1", [0.0], [float("inf")], [True], ["1"]),
    "training_examples": (0, -3, 1.5, True, "12", [12]),
    "analyses": ("{}", "[1]", "3"),
    "notes": ("[]", "3"),
    "title": (3, ["a"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_attributes_of_other_types_are_told(attributes, name):
    for right in (attributes, attributes | {"training_examples": 1}):
        assert template_fault(xr.Dataset(attrs=right)) == ""
    for value in WRONG[name]:
        fault = template_fault(xr.Dataset(attrs=attributes | {name: value}))
        assert name in fault or "of another form" in fault, value


def test_numbers_of_the_grid_fit_into_64_bits(attributes):
    identity = json.loads(attributes["study"])
    for name, largest in (("seeds", 2**63 - 1), ("widths", 2**62)):
        assert identity_fault(identity | {name: [largest]}) == ""
        for value in (2**63, 2**64):
            assert f"the study's {name} are of another type" in identity_fault(
                identity | {name: [value]}
            )
