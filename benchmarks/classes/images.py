"""Ten classes of images beside scikit-learn's Laplace and GPyTorch's variational classifier.

All on the same kernel at fixed U, that of the Gaussian process limit; then the minimisation over U,
which the others do not have. GPyTorch's has all examples as inducing points, so that its only
approximation is the Gaussian of f. scikit-learn's is one binary classifier for each class.
"""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable

import numpy as np

import pathkernel_core as pk
from benchmarks.classes.data import fashion, print_row

EXAMPLES, HEADS, WIDTH, CLASSES = 500, (4, 4), 200, 10
VARIANCE = 30.0
STEPS = 2000  # of Adam
IMAGES = ("", "CPU s", "evaluations", "peak GiB so far", "log loss", "accuracy")
"""Columns of the table."""


def images() -> None:
    """Print seconds, memory, log loss and accuracy of every side."""
    xi, labels, test, test_labels = fashion(CLASSES, EXAMPLES, HEADS)
    variances = (VARIANCE, *[1.0] * (len(HEADS) + 1))
    network = pk.Network(HEADS, WIDTH, variances, outputs=CLASSES)
    problem = pk.Problem(xi, labels, likelihood="softmax")
    paths, width = xi.shape[1:]
    title = f"P = {EXAMPLES}, n = {paths}, N_0 = {width}, C = {CLASSES}: {problem.space}"
    print(title, *IMAGES, sep=", ")
    features, new = (
        values.reshape(len(values), -1) * np.sqrt(VARIANCE / (paths * width))
        for values in (xi, test)
    )

    def ours(solve: Callable) -> tuple[np.ndarray, str]:
        solution = solve(problem, network)
        return solution.predict(test).probabilities, str(solution.evaluations)

    sides: dict[str, Callable[[], tuple[np.ndarray, str]]] = {
        "limit: scikit-learn, one class against the others": lambda: scikit_learn(
            features, labels, new
        ),
        "limit: GPyTorch, variational softmax": lambda: variational(features, labels, new),
        "limit: softmax by Laplace": lambda: ours(pk.gp_limit),
        f"N = {WIDTH}: softmax by Laplace, minimised over U": lambda: ours(pk.minimise_action),
    }
    for name, side in sides.items():
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probabilities, evaluations = side()
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        own = probabilities[np.arange(len(test_labels)), test_labels]
        accuracy = (probabilities.argmax(axis=1) == test_labels).mean()
        print_row(
            name, f"{seconds:.1f}", evaluations, f"{peak:.2f}", f"{-np.log(own).mean():.3f}",
            f"{accuracy:.3f}",
        )  # fmt: skip


def scikit_learn(
    features: np.ndarray, labels: np.ndarray, new: np.ndarray
) -> tuple[np.ndarray, str]:
    """Probabilities by scikit-learn's GaussianProcessClassifier, at a fixed kernel."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import DotProduct

    kernel = DotProduct(sigma_0=0.0, sigma_0_bounds="fixed")
    classifier = GaussianProcessClassifier(kernel, optimizer=None).fit(features, labels)
    return classifier.predict_proba(new), "10"


def variational(
    features: np.ndarray, labels: np.ndarray, new: np.ndarray
) -> tuple[np.ndarray, str]:
    """Probabilities by GPyTorch's variational process with a softmax likelihood."""
    try:
        import gpytorch
    except ImportError:
        return np.full((len(new), CLASSES), np.nan), "not installed"
    import torch

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self, inducing: torch.Tensor):
            shape = torch.Size([CLASSES])
            distribution = gpytorch.variational.CholeskyVariationalDistribution(
                len(inducing), batch_shape=shape
            )
            strategy = gpytorch.variational.IndependentMultitaskVariationalStrategy(
                gpytorch.variational.VariationalStrategy(
                    self, inducing, distribution, learn_inducing_locations=False
                ),
                num_tasks=CLASSES,
            )
            super().__init__(strategy)
            self.kernel = gpytorch.kernels.LinearKernel(batch_shape=shape)
            self.kernel.variance = 1.0
            self.kernel.requires_grad_(False)

        def forward(self, x: torch.Tensor):
            mean = torch.zeros(CLASSES, len(x), dtype=x.dtype)
            covariance = self.kernel(x).add_jitter(1e-6)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    torch.manual_seed(0)
    rows, targets = torch.as_tensor(features), torch.as_tensor(labels)
    process = Process(rows).double()
    likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_classes=CLASSES, mixing_weights=False)
    objective = gpytorch.mlls.VariationalELBO(likelihood, process, num_data=len(rows))
    optimiser = torch.optim.Adam(process.parameters(), lr=0.01)
    process.train()
    lowest, since, steps = np.inf, 0, 0
    while since <= 50 and steps < STEPS:
        steps += 1
        optimiser.zero_grad()
        loss = -objective(process(rows), targets)
        loss.backward()
        optimiser.step()
        since = 0 if loss.item() < lowest - 1e-4 else since + 1
        lowest = min(lowest, loss.item())
    process.eval()
    with torch.no_grad(), gpytorch.settings.num_likelihood_samples(1000):
        probabilities = likelihood(process(torch.as_tensor(new))).probs.mean(0)
    return probabilities.numpy(), str(steps)
