"""
The two ArviZ libraries: 0.x keeps groups in an `InferenceData`, 1.x in an `xarray.DataTree`.

An export is built as data sets by group, which either is made of here; no other file knows which of the two is
installed. What both have under the same name is used under it: `idata.posterior`, `idata["posterior"]["a"]`,
`idata.attrs`, `idata.close()`. The names of the groups are `groups_of(idata)`, for 0.x has a method `groups` and 1.x
an attribute of another meaning.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = [
    "bundle",
    "compared",
    "dataset_of",
    "elpd_of",
    "groups_of",
    "held_out",
    "import_arviz",
    "is_tree",
    "open_netcdf",
    "plot_compared",
]

_TITLE = "held-out elpd"


def import_arviz() -> ModuleType:
    """Import ArviZ without the notice of 0.x about 1.x."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz

    return arviz


def is_tree() -> bool:
    """Whether the ArviZ that is installed takes an `xarray.DataTree`: 1.x does, 0.x has a class of its own."""
    return not str(import_arviz().__version__).startswith("0.")


def bundle(groups: Mapping[str, Any], attrs: Mapping[str, Any]) -> Any:
    """Return data sets by group as what the installed ArviZ takes."""
    if is_tree():
        import xarray as xr

        root = xr.Dataset(attrs=dict(attrs))
        return xr.DataTree.from_dict({"/": root, **groups})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a group that its scheme does not name
        return import_arviz().InferenceData(**groups, attrs=dict(attrs))


def groups_of(idata: Any) -> list[str]:
    """
    Return the names of the groups of an export, in ArviZ 0.x and 1.x alike.

    :param idata: the export, of ArviZ 0.x or 1.x.

    >>> import pyro_bnn as pb
    >>> from pyro_bnn.analysis.arviz import groups_of
    >>> digits = pb.load_data("mnist-mini").test
    >>> idata = pb.load("lenet5-mnist-mini").to_arviz(digits.x[:3], num_samples=2)
    >>> "posterior_predictive" in groups_of(idata)
    True
    """
    children = getattr(idata, "children", None)
    return list(idata.groups()) if children is None else list(children)


def dataset_of(idata: Any, group: str) -> Any:
    """Return one group as an `xarray.Dataset`."""
    held = idata[group]
    return held.to_dataset() if hasattr(held, "to_dataset") and hasattr(held, "children") else held


def open_netcdf(path: Path) -> Any:
    """Open a netCDF file whose arrays are read when they are used."""
    if is_tree():
        import xarray as xr

        return xr.open_datatree(path, engine="h5netcdf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return import_arviz().from_netcdf(str(path), engine="h5netcdf")


# -- expected log predictive densities -----------------------------------------------------------------------------


def elpd_of(estimate: Any) -> float:
    """Return the sum over points that an `ELPDData` holds; 0.x calls it by its estimator."""
    return float(estimate.elpd if is_tree() else estimate.iloc[0])


def held_out(pointwise: Any, se: float, num_samples: int) -> Any:
    """Return `ELPDData` of densities of points that were held out, which both libraries insist on calling loo."""
    n, total = len(pointwise), float(pointwise.sum())
    if is_tree():
        from arviz_stats.utils import ELPDDataLOO

        numbers: Any = {"elpd": total, "se": se, "p": 0.0, "n_samples": num_samples, "n_data_points": n}
        return ELPDDataLOO(**numbers, scale="log", warning=False, good_k=1.0, elpd_i=pointwise, approx_posterior=False)
    from arviz.stats.stats_utils import ELPDData

    index = ["elpd_loo", "se", "p_loo", "n_samples", "n_data_points", "warning", "loo_i", "scale"]
    return ELPDData(data=[total, se, 0.0, num_samples, n, False, pointwise, "log"], index=index)


def compared(estimates: Mapping[str, Any]) -> Any:
    """Return `arviz.compare` as a DataFrame, best first, with what 0.x calls its columns; differences are positive."""
    az = import_arviz()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not is_tree():
            return az.compare(dict(estimates), ic="loo", method="stacking", scale="log")
        table = az.compare(dict(estimates), method="stacking", round_to="none")
    table["elpd_diff"] = table["elpd_diff"].abs()
    return table.rename(columns={"elpd": "elpd_loo"})


def plot_compared(estimates: Mapping[str, Any], **options: Any) -> Any:
    """Draw `arviz.plot_compare` of held-out elpds and return matplotlib axes, named for what is drawn."""
    az = import_arviz()
    if is_tree():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = az.compare(dict(estimates), method="stacking", round_to="none")
            axes = az.plot_compare(table, backend="matplotlib", **options).viz["plot"].item()
    else:
        axes = az.plot_compare(compared(estimates), title=False, **options)
    axes.set_title(f"{_TITLE}: higher is better")
    axes.set_xlabel(f"{_TITLE} (log)")
    return axes
