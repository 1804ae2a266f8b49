"""What a notebook shows of solutions, problems and networks."""

from xml.etree import ElementTree

import formulas
import numpy as np

import pathkernel_core as pk
from pathkernel_core.system.notebook import matrix


def cells(page):
    """Text of all cells; raises if the page is not well formed."""
    tree = ElementTree.fromstring(f"<div>{page}</div>")
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def test_a_solution_shows_its_numbers_and_its_order_parameter(library, generator):
    network = pk.Network((2, 2), 20, (1.0, 0.5, 1.0, 2.0))
    xi, labels = formulas.random_examples(network, 12, 3, generator)
    problem = pk.Problem(library.array(xi), library.array(labels))
    solution = pk.minimise_action(problem, network, 0.1)
    shown = cells(solution._repr_html_())
    description = dict(row for row in shown if len(row) == 2)
    assert description["status"].startswith("CONVERGED")
    assert float(description["log evidence"].split()[0]) == float(f"{solution.log_evidence:.6g}")
    table = np.array([row[1:] for row in shown if row[0] in network.path_labels], dtype=float)
    order_parameter = library.numpy(solution.order_parameter)
    np.testing.assert_allclose(table, order_parameter, rtol=1e-2, atol=1e-3)
    expected = pk.head_scores(network, order_parameter)
    np.testing.assert_array_equal(solution.head_scores, expected)
    description = dict(cells(problem._repr_html_()))
    assert (description["training examples"], description["attention paths"]) == ("12", "4")
    assert description["arrays"].startswith(library.name.replace("-", "_"))
    assert dict(cells(network._repr_html_()))["prior variances"] == "1, 0.5, 1, 2"


def test_outputs_label_the_rows(generator):
    network = pk.Network((2,), 20, outputs=2)
    problem = pk.Problem(*formulas.random_examples(network, 12, 3, generator))
    rows = cells(pk.gp_limit(problem, network, 0.1)._repr_html_())
    assert [row[0] for row in rows[-4:]] == ["1, 0", "1, 1", "2, 0", "2, 1"]


def test_large_and_broken_matrices():
    values = np.where(np.eye(20) > 0, np.nan, -2.0)
    page = matrix("U <1>", values, [f"<{index}>" for index in range(20)])
    rows = cells(page)
    assert len(rows) == len(rows[0]) == 17
    assert "first 16 of 20 rows" in page
    assert rows[1][:3] == ["<0>", "nan", "-2"]
