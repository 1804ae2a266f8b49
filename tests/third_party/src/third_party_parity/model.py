"""A model of the posterior whose coordinates are twice another's."""

import math

import jax

import pathkernel as pk


@jax.tree_util.register_pytree_node_class
class RescaledModel:
    """The order parameter's model at half of the coordinates."""

    name = "third-party-rescaled"

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def of(cls, xi, labels, network, temperature):
        """Model of a task's training examples."""
        sampler = pk.plugins.load_plugins().samplers["order-parameter"]
        return cls(sampler.build(xi, labels, network, temperature))

    @property
    def dimension(self):
        """Number of coordinates."""
        return self.inner.dimension

    def initial(self, key):
        """Draw from the prior."""
        return 2 * self.inner.initial(key)

    def log_prior(self, x):
        """Density of the prior, normalised in these coordinates."""
        return self.inner.log_prior(x / 2) - self.dimension * math.log(2)

    def log_density(self, x):
        """Density of prior times likelihood."""
        return self.inner.log_density(x / 2) - self.dimension * math.log(2)

    def order_parameter(self, x):
        """Order parameter U of a draw."""
        return self.inner.order_parameter(x / 2)

    def predict(self, x, test):
        """Mean and variance of f given the draw."""
        return self.inner.predict(x / 2, test)

    def tree_flatten(self):
        """As JAX takes it apart."""
        return (self.inner,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        """As JAX puts it together."""
        return cls(*children)
