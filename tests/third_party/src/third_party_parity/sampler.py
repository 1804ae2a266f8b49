"""The sampler: the order parameter's coordinates on another scale, without JAX until it is used."""


class Rescaled:
    """Draws order parameters by coordinates that are doubled."""

    name = "third-party-rescaled"
    summary = "all weights integrated; coordinates on another scale"

    def build(self, xi, labels, network, temperature):
        """Model of the posterior."""
        from third_party_parity.model import RescaledModel

        return RescaledModel.of(xi, labels, network, temperature)
