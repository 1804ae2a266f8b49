"""Classes of a live model: from integer labels of batches to head scores and a study."""

import numpy as np
import pytest

import pathkernel_core as pk

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from pathkernel_capture.capture import capture
from pathkernel_datasets.run.run_study import run_study
from pathkernel_datasets.study.study import Study

CLASSES = 3


def captured(order=range(CLASSES), dtype=torch.int64):
    """Thirty sequences of an encoder of two layers, with classes that the first token tells."""
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    inputs = torch.randn(30, 4, 6)
    classes = torch.tensor(order)[inputs[:, 0, :CLASSES].argmax(dim=1)].to(dtype)
    pairs = zip(inputs.split(10), classes.split(10))
    return capture(model, pairs, readout="mean").scale_tokens(3.0), classes.numpy()


def minimum(examples):
    problem = pk.Problem(examples.xi, examples.labels, likelihood="softmax")
    return pk.minimise_action(problem, pk.Network(examples.heads, 20, outputs=CLASSES))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_integer_labels_stay_classes(dtype):
    examples, classes = captured(dtype=dtype)
    assert examples.labels.dtype.kind in "iu"
    np.testing.assert_array_equal(examples.labels, classes)
    solution = minimum(examples)
    prediction = solution.predict(examples.xi)
    assert prediction.probabilities.shape == (30, CLASSES)
    own = prediction.probabilities[np.arange(30), classes]
    assert -np.log(own).mean() < np.log(CLASSES)
    scores = examples.by_head(solution.head_scores)
    assert scores["head"].values.tolist() == ["0-0", "1-1", "1-2", "2-1", "2-2"]
    np.testing.assert_array_equal(scores, solution.head_scores)


def test_scores_of_the_heads_do_not_depend_on_the_names_of_the_classes():
    (one, _), (other, _) = captured(), captured(order=(2, 0, 1))
    assert (one.labels != other.labels).all()
    scores = [part.by_head(minimum(part).head_scores) for part in (one, other)]
    np.testing.assert_allclose(*scores, atol=1e-6)


def test_study_of_captured_classes(tmp_path):
    examples, _ = captured()
    task = examples.task(test_fraction=0.5, folder=tmp_path / "data")
    study = Study(task, widths=(20,), likelihood="softmax")
    dataset = run_study(study, tmp_path / "study").load()
    np.testing.assert_allclose(dataset["probability"].sum("class"), 1)
    point = dataset["head_score"].isel(seed=0, width=0, temperature=0)
    assert examples.by_head(point)["head"].values.tolist()[0] == "0-0"
