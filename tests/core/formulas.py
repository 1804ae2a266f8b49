"""The formulas of the theory written out naively, independent of the package that is tested."""

import itertools
import math

import numpy as np


def all_paths(heads):
    """Head indices (from 0) of each path, the first layer slowest."""
    return list(itertools.product(*(range(count) for count in heads)))


def softmax_attention(inputs, score):
    """Ω (P, M, M), key token first: softmax over s of score(x_s, x_t) (Eq. 3)."""
    examples, tokens, _ = inputs.shape
    omega = np.zeros((examples, tokens, tokens))
    for example, query in itertools.product(range(examples), range(tokens)):
        scores = [score(inputs[example, key], inputs[example, query]) for key in range(tokens)]
        weights = np.exp(np.array(scores) - max(scores))
        omega[example, :, query] = weights / weights.sum()
    return omega


def attentioned_inputs(inputs, omegas, readout):
    """ξ^π (P, n, N_0) from products of whole attention matrices (Eq. 7).

    omegas: one array (P, H, M, M) per layer; readout: weights r over tokens.
    """
    examples, _, width = inputs.shape
    paths = all_paths([omega.shape[1] for omega in omegas])
    xi = np.zeros((examples, len(paths), width))
    for example, (index, path) in itertools.product(range(examples), enumerate(paths)):
        weights = readout
        for omega, head in reversed(list(zip(omegas, path))):
            weights = omega[example, head] @ weights
        xi[example, index] = inputs[example].T @ weights
    return xi


def kernel(xi, second, order_parameter, outputs=1, variance=1.0):
    """K (P·C, P'·C) as the explicit sum over pairs of paths (Eq. 10)."""
    paths, width = xi.shape[1:]
    u = np.asarray(order_parameter).reshape(paths, outputs, paths, outputs)
    total = np.zeros((len(xi), outputs, len(second), outputs))
    for left, right in itertools.product(range(paths), repeat=2):
        path_path = xi[:, left] @ second[:, right].T / width
        for c, d in itertools.product(range(outputs), repeat=2):
            total[:, c, :, d] += variance / paths * u[left, c, right, d] * path_path
    return total.reshape(len(xi) * outputs, len(second) * outputs)


def gaussian_process(xi, labels, new, order_parameter, temperature, variance=1.0):
    """Mean and variance (P', C) of a Gaussian process with the total kernel (Eq. 29, 30)."""
    labels = labels.reshape(len(xi), -1)
    outputs = labels.shape[1]
    noisy = kernel(xi, xi, order_parameter, outputs, variance)
    noisy = noisy + temperature * np.eye(len(noisy))
    across = kernel(new, xi, order_parameter, outputs, variance)
    inverse = np.linalg.inv(noisy)
    mean = across @ inverse @ labels.reshape(-1)
    prior = np.diag(kernel(new, new, order_parameter, outputs, variance))
    explained = np.einsum("ij,jk,ik->i", across, inverse, across)
    return mean.reshape(-1, outputs), (prior - explained).reshape(-1, outputs)


def log_det(xp, matrix):
    if xp is np:  # complex, for derivatives by the complex step
        sign, log_abs = np.linalg.slogdet(matrix)
        return np.log(sign) + log_abs
    return xp.linalg.slogdet(matrix)[1]


def partial_trace(xp, matrix, heads):
    size = matrix.shape[0] // heads
    return xp.einsum("hahb->ab", matrix.reshape(heads, size, heads, size))


def entropy(xp, network, order_parameters):
    """First two lines of the action, un-normalised (Eq. 33), for NumPy, JAX and PyTorch.

    Where a skip repeats the order parameter above, the heads' block alone has a prior.
    """
    *_, top = order_parameters
    total = network.widths[-1] * (xp.trace(top) / network.variances[-1] - log_det(xp, top))
    for layer, (heads, skip) in enumerate(zip(network.heads, network.skips)):
        below, above = order_parameters[layer], order_parameters[layer + 1]
        shared = 0 if skip is None else len(above)
        traced = partial_trace(xp, below[shared:, shared:], heads)
        trace = xp.trace(xp.linalg.inv(above) @ traced) / network.variances[1 + layer]
        branches = heads + (skip is not None)
        total = total + network.widths[layer] * (
            trace - log_det(xp, below) + branches * log_det(xp, above)
        )
    return total


def entropy_gradient(network, order_parameters):
    """Gradients in U_1, …, u_a, each with the others fixed, by the complex step."""
    gradients = [np.empty(matrix.shape) for matrix in order_parameters]
    for level, gradient in enumerate(gradients):
        for index in np.ndindex(gradient.shape):
            shifted = [matrix.astype(complex) for matrix in order_parameters]
            shifted[level][index] += 1e-30j
            gradient[index] = entropy(np, network, shifted).imag / 1e-30
    return gradients


def limit(network):
    """U_1, …, u_a of infinite width: a skip repeats the one above, a head multiplies it by σ²."""
    chain = [network.variances[-1] * np.eye(network.outputs)]
    layers = list(zip(network.heads, network.variances[1:], network.skips))
    for heads, variance, skip in reversed(layers):
        factors = [variance] * heads if skip is None else [1.0, *[variance] * heads]
        chain.insert(0, np.kron(np.diag(factors), chain[0]))
    return chain


def energy(xp, order_parameter, xi, labels, temperature, variance=1.0):
    """Last line of the action (Eq. 34), for NumPy, JAX and PyTorch."""
    xi, labels = xp.asarray(xi), xp.asarray(labels.reshape(len(xi), -1))
    examples, paths, width = xi.shape
    outputs = labels.shape[1]
    u = order_parameter.reshape(paths, outputs, paths, outputs)
    if xp is np:
        u = u.astype(complex)
    total = xp.einsum(
        "mpi,pcqd,nqi->mcnd",
        xi.astype(complex) if xp is np else xi,
        u,
        xi.astype(complex) if xp is np else xi,
    )
    total = total.reshape(examples * outputs, examples * outputs) * (variance / paths / width)
    noisy = total + temperature * xp.asarray(np.eye(examples * outputs))
    flat = labels.reshape(-1)
    if xp is np:
        flat = flat.astype(complex)
    return log_det(xp, noisy) + flat @ xp.linalg.solve(noisy, flat)


def action(xp, network, order_parameters, xi, labels, temperature):
    """The whole action, un-normalised (Eq. 11, 32)."""
    return entropy(xp, network, order_parameters) + energy(
        xp, order_parameters[0], xi, labels, temperature, network.variances[0]
    )


def wishart(scale, degrees, draws, generator):
    """Wishart draws by their definition, sums of outer products of Gaussian vectors."""
    factor = np.linalg.cholesky(scale / degrees)
    rows = np.matmul(factor, generator.standard_normal((draws, *factor.shape[-1:], degrees)))
    return np.matmul(rows, np.swapaxes(rows, -1, -2))


def wishart_hierarchy(network, draws, generator):
    """Draws of u_a, then U_L given u_a, … down to U_1; returned as U_1, …, U_L, u_a."""
    top = network.variances[-1] * np.eye(network.outputs)[None]
    chain = [wishart(top, int(network.widths[-1]), draws, generator)]
    for layer in reversed(range(len(network.heads))):
        above = chain[0]
        eye = np.eye(network.heads[layer])
        scale = network.variances[1 + layer] * np.einsum("gh,zab->zgahb", eye, above)
        size = network.heads[layer] * above.shape[1]
        scale = scale.reshape(draws, size, size)
        chain.insert(0, wishart(scale, int(network.widths[layer]), draws, generator))
    return chain


def random_positive(size, generator):
    """A well-conditioned positive definite matrix."""
    rows = generator.standard_normal((size, 2 * size + 2))
    return rows @ rows.T / rows.shape[1] + 0.1 * np.eye(size)


def random_chain(network, generator):
    sizes = [math.prod(network.heads[i:]) * network.outputs for i in range(len(network.widths))]
    return [random_positive(size, generator) for size in sizes]


def random_examples(network, examples, width, generator, rank=None):
    """Attentioned inputs (P, n, N_0) that span at most ``rank`` dimensions, and labels."""
    paths = math.prod(network.heads)
    xi = generator.standard_normal((examples, paths, width if rank is None else rank))
    if rank is not None:
        xi = xi @ generator.standard_normal((rank, width))
    labels = np.sign(generator.standard_normal((examples, network.outputs)))
    return xi, labels[:, 0] if network.outputs == 1 else labels


def relative_error(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-300)
