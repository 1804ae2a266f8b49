"""The result: the spectrum of the order parameter at every point of a study."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from pathkernel_core.options import option
from pathkernel_core.progress import Progress
from pathkernel_core.result import Result


@dataclass(frozen=True)
class Spectrum(Result):
    """Eigenvalues of the order parameter U, largest first."""

    name = "third-party-spectrum"
    summary = "Eigenvalues of the order parameter"

    count: int = option(3, "eigenvalues to keep", least=1)

    def compute(self, study, report):
        """Diagonalise U at every point of the study."""
        report(Progress(0, 1, "diagonalising"))
        matrices = study.dataset["order_parameter"].load()
        values = np.linalg.eigvalsh(matrices.transpose(..., "path", "path_dual"))
        kept = values[..., ::-1][..., : self.count]
        dims = (*matrices.dims[:3], "rank")
        return xr.Dataset(
            {"eigenvalue": (dims, kept, {"long_name": "eigenvalue of U", "units": "1"})},
            {name: study.dataset[name] for name in dims[:3]}
            | {"rank": ("rank", np.arange(1, kept.shape[-1] + 1))},
        )

    def tables(self, study):
        """The largest eigenvalue at every width."""
        largest = study.result(self.name)["eigenvalue"].sel(rank=1).isel(seed=0, temperature=0)
        for width, value in zip(largest["width"].values, largest.values):
            yield f"Largest eigenvalue of U at N = {width:g}: {value:.4g}"

    def figures(self, study):
        """The eigenvalues against the width."""

        def draw():
            from matplotlib.figure import Figure

            values = study.result(self.name)["eigenvalue"].isel(seed=0, temperature=0)
            figure = Figure(layout="constrained")
            axis = figure.subplots()
            for rank in values["rank"].values:
                line = values.sel(rank=rank)
                axis.loglog(line["width"], line, "o-", label=f"eigenvalue {rank}")
            axis.set(xlabel="width N", ylabel="eigenvalue of U")
            axis.legend()
            return figure

        return {"spectrum": draw}
