"""
Held-out elpd: comparing models by their log predictive density at points that none of them was trained on.

    elpd = sum_i log p(y_i | x_i, D),   log p(y_i | x_i, D) = log mean_s p(y_i | x_i, w_s)
    se   = sqrt(N var_i)                over points; that of a difference is taken over paired differences

Nothing is left out and nothing corrected for, so the effective number of parameters is 0. ArviZ compares it as it
compares LOO once it comes as ELPDData, whose entries it insists on calling loo; tables and plots of this file say what
it is. Held-out elpd is defined for every posterior: tempered, cold, a point, an ensemble.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.analysis.arviz.versions import compared, held_out, plot_compared

__all__ = ["TITLE", "compare_held_out", "held_out_elpd", "plot_held_out"]

TITLE = "held-out elpd"
"""What the figures of such comparisons are called: not LOO."""

_RENAMED = {"elpd_loo": "held_out_elpd", "elpd_diff": "difference", "dse": "se_difference"}


def held_out_elpd(log_density: Tensor, num_samples: int) -> Any:
    """
    Return `arviz.ELPDData` of held-out points, with p = 0.

    :param log_density: log mean_s p(y_i | x_i, w_s), (N,), as `evaluate_rows(...).log_density` has it.
    :param num_samples: how many draws it averages.
    """
    import xarray as xr

    values: NDArray[np.float64] = log_density.detach().cpu().double().numpy()
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise ValueError(
            f"log_density has shape {values.shape}, {int((~np.isfinite(values)).sum())} entries infinite or NaN: give "
            f"one finite number per point (N,)"
        )
    if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples < 1:
        raise ValueError(f"num_samples={num_samples!r}: give how many draws log_density averages, an integer >= 1")
    n = len(values)
    pointwise = xr.DataArray(values, dims="obs_id", coords={"obs_id": np.arange(n)}, name="loo_i")
    return held_out(pointwise, math.sqrt(n * values.var()), num_samples)


def compare_held_out(elpds: Mapping[str, Any]) -> Any:
    """
    Compare models by `arviz.compare` on results of `held_out_elpd` over the same points; a DataFrame, best first.

    Columns: rank, held_out_elpd, se, difference to the best and its se over paired points, and stacking weights.

    :param elpds: what `held_out_elpd` returned, by the name of the model.
    """
    if len(elpds) < 2:
        raise ValueError(f"{len(elpds)} model to compare: pass at least two")
    sizes = {name: int(e["n_data_points"]) for name, e in elpds.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"the models were scored on different numbers of points ({sizes}): score them on the same")
    table = compared(elpds).rename(columns=_RENAMED)
    table = table[["rank", "held_out_elpd", "se", "difference", "se_difference", "weight"]]
    table.attrs["title"] = TITLE
    return table


def plot_held_out(elpds: Mapping[str, Any], **options: Any) -> Any:
    """
    Draw `arviz.plot_compare` of the same models with its title and axis named for what they are.

    :param elpds: what `held_out_elpd` returned, by the name of the model.
    """
    return plot_compared(elpds, **options)
