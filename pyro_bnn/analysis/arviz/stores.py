"""
Where the arrays of an export are kept: in memory, in a netCDF file, in a zarr folder.

A store makes room for every variable first; the arrays are filled draw by draw, and handed over at the end.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from pyro_bnn.analysis.arviz.versions import bundle, dataset_of, groups_of, open_netcdf

__all__ = ["Array", "Store", "Variable", "file_name", "open_arviz", "save_arviz", "store_for"]

Array: TypeAlias = Any  # what takes array[c, s] = values: NumPy, h5netcdf or zarr

_CHUNK_VALUES = 2**18


@dataclass(frozen=True)
class Variable:
    """Layout of one variable."""

    group: str
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: Any = np.float32

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)

    def chunks(self) -> tuple[int, ...]:
        """One draw or more per chunk, about a quarter of a million values, and long draws in several."""
        sizes, room = list(self.shape), _CHUNK_VALUES
        for axis in reversed(range(len(sizes))):
            sizes[axis] = max(1, min(sizes[axis], room))
            room = max(1, room // sizes[axis])
        return tuple(sizes)


class Store(ABC):
    """Where an export is kept: empty arrays come first, are filled draw by draw, and are handed over at the end."""

    @abstractmethod
    def new(self, variable: Variable) -> Array:
        """Make room for a variable."""

    @abstractmethod
    def finish(self, coords: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]) -> Any:
        """Return what the installed ArviZ takes, with coordinates by group."""


@final
class Memory(Store):
    def __init__(self) -> None:
        self.arrays: dict[str, dict[str, tuple[tuple[str, ...], NDArray[Any]]]] = {}

    def new(self, variable: Variable) -> Array:
        array = np.empty(variable.shape, variable.dtype)
        self.arrays.setdefault(variable.group, {})[variable.name] = (variable.dims, array)
        return array

    def finish(self, coords: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]) -> Any:
        import xarray as xr

        groups = {g: xr.Dataset(variables, coords[g], attrs) for g, variables in self.arrays.items()}
        return bundle(groups, attrs)


@final
class NetCDF(Store):
    def __init__(self, path: Path) -> None:
        import h5netcdf

        self.path = path
        self.file = h5netcdf.File(path, "w")
        self.groups: list[str] = []

    def new(self, variable: Variable) -> Array:
        if variable.group not in self.groups:
            self.groups.append(variable.group)
            self.file.create_group(variable.group)
        group = self.file[variable.group]
        for name, size in zip(variable.dims, variable.shape, strict=True):
            if name not in group.dimensions:
                group.dimensions[name] = size
        truth = np.dtype(variable.dtype) == np.bool_  # of which netCDF has no type: xarray reads it off an attribute
        options = {"chunks": variable.chunks(), "compression": "gzip", "compression_opts": 1} if variable.dims else {}
        array = group.create_variable(variable.name, variable.dims, np.int8 if truth else variable.dtype, **options)
        if truth:
            array.attrs["dtype"] = "bool"
        return array

    def finish(self, coords: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]) -> Any:
        import xarray as xr

        self.file.close()
        for group in self.groups:
            extra = xr.Dataset(coords=coords[group], attrs=attrs)
            extra.to_netcdf(self.path, mode="a", group=group, engine="h5netcdf")
        xr.Dataset(attrs=attrs).to_netcdf(self.path, mode="a", engine="h5netcdf")
        return open_arviz(self.path)


@final
class Zarr(Store):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = _zarr().open_group(str(path), mode="w")
        self.groups: list[str] = []

    def new(self, variable: Variable) -> Array:
        if variable.group not in self.groups:
            self.groups.append(variable.group)
            self.root.create_group(variable.group)
        return self.root[variable.group].create_array(
            variable.name,
            shape=variable.shape,
            dtype=np.dtype(variable.dtype),
            chunks=variable.chunks(),
            dimension_names=variable.dims,
        )

    def finish(self, coords: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]) -> Any:
        import xarray as xr

        for group in self.groups:
            # text as objects becomes zarr's own variable-length type, not a NumPy-only one
            plain = {name: np.array(v, object) if _is_text(v) else v for name, v in coords[group].items()}
            extra = xr.Dataset(coords=plain, attrs=attrs)
            extra.to_zarr(self.path, mode="a", group=group, consolidated=False)
        self.root.attrs.update(attrs)
        return open_arviz(self.path)


def file_name(name: str) -> str:
    """Return a name that files and trees take: a slash is of their own."""
    return name.replace("/", ".")


def _is_text(values: Any) -> bool:
    return np.asarray(values).dtype.kind in "UO"


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise ValueError(
            "a .zarr export needs the package zarr (3 or newer): install it, or give a .nc path"
        ) from error
    return zarr


def store_for(path: str | Path | None) -> Store:
    """Return the store of a path: memory where there is none, else what its ending says."""
    if path is None:
        return Memory()
    path = Path(path)
    if path.suffix not in (".nc", ".zarr"):
        raise ValueError(f"path={str(path)!r} is of no known format: end it in .nc (netCDF) or .zarr")
    path.parent.mkdir(parents=True, exist_ok=True)
    return NetCDF(path) if path.suffix == ".nc" else Zarr(path)


# -- files -----------------------------------------------------------------------------------------------------------


def save_arviz(idata: Any, path: str | Path) -> Path:
    """
    Write an export in chunks to a .nc (netCDF) or .zarr.

    :param idata: the export, of ArviZ 0.x or 1.x.
    :param path: where to; the ending says which format.
    """
    path = Path(path)
    store = store_for(path)
    coords: dict[str, dict[str, Any]] = {}
    for group in groups_of(idata):
        data = dataset_of(idata, group)
        coords[group] = {name: values.values for name, values in data.coords.items()}
        for name, values in data.data_vars.items():
            array = store.new(Variable(group, str(name), tuple(values.dims), values.shape, values.dtype))
            if values.ndim and len(values):
                for row in range(len(values)):
                    array[row] = values[row].values
            else:
                array[...] = values.values
    store.finish(coords, dict(idata.attrs)).close()
    return path


def open_arviz(path: str | Path) -> Any:
    """
    Open a .nc or .zarr export; arrays are read when they are used.

    :param path: the file or folder.
    """
    import xarray as xr

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no export {path}: write one with save_arviz or to_arviz(..., path=...)")
    if path.suffix != ".zarr":
        return open_netcdf(path)
    root = _zarr().open_group(str(path), mode="r")
    groups = {name: xr.open_zarr(path, group=name, consolidated=False, chunks=None) for name in root.group_keys()}
    return bundle(groups, dict(root.attrs))
