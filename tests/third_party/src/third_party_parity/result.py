"""The result: the spectrum of the order parameter at every point of a study."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

import pathkernel as pk


@dataclass(frozen=True)
class Spectrum(pk.plugins.Result):
    """Eigenvalues of the order parameter U, largest first."""

    name = "third-party-spectrum"
    summary = "Compute the eigenvalues of the order parameter"

    count: int = pk.plugins.option(3, "eigenvalues to keep", minimum=1)

    def compute(self, study, report):
        """Diagonalise U at every point of the study."""
        report(pk.plugins.Progress(0, 1, "diagonalising"))
        matrices = study.dataset["order_parameter"].load()
        values = np.linalg.eigvalsh(matrices.transpose(..., "path", "path_dual"))
        kept = values[..., ::-1][..., : self.count]
        dims = (*matrices.dims[:3], "rank")
        return xr.Dataset(
            {"eigenvalue": (dims, kept, {"long_name": "eigenvalue of U", "units": "1"})},
            {name: study.dataset[name] for name in dims[:3]}
            | {"rank": ("rank", np.arange(1, kept.shape[-1] + 1))},
        )

    def views(self, study):
        """The eigenvalues as a table and against the width, and a sentence."""
        values = study.result(self.name)["eigenvalue"].isel(seed=0, temperature=0)
        frame = pk.views.frame_of(values)

        def draw():
            return pk.views.lines(frame, "width", "eigenvalue", series="rank", log=True, log_y=True)

        cells, across = {"N": "{width}"}, ("rank", "{eigenvalue:.4g}")
        yield pk.views.Table("eigenvalues", "Eigenvalues of U", frame, cells, across=across)
        yield pk.views.Chart("spectrum", "Eigenvalues of U", "Against the width N.", draw)
        for width, value in zip(values["width"].values, values.sel(rank=1).values):
            yield f"Largest eigenvalue of U at N = {width:g}: {value:.4g}"
