"""
What a guide was fitted with: the tempering, the rows, the scales of inputs and targets.

`fit` leaves it on the guide as its attribute `fitted` (and in its result), and whatever receives the guide reads it
there: that is the whole contract. It is a plain attribute, so that modules, stock autoguides and functions carry it
alike, and copies of a guide with it; a bound method's lies on its object, under the method's name. `Posterior` puts it
into its info, saves it there, and leaves it on the guide again when it is loaded.

A program's own `pyro.param`s and the parameters of stock autoguides live in Pyro's store under names that another
program may use, too. `tensors` holds those that were fitted, by name, with their constraints: the tensors themselves,
no copies, so that a training that goes on is seen, and one of another program is not.
"""

import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor

from pyro_bnn.data.standardise import Standardiser

__all__ = ["Fitted", "fitted_of", "leave_fitted"]


@final
@dataclass(frozen=True)
class Fitted:
    """
    What a guide was fitted with.

    :param num_data: N, the rows that were trained on.
    :param input_shape: the shape of one input; None if there is not one tensor of them.
    :param eta: the tempering at the end: the product of the factors of the KL weight in the last epoch, an annealing
        that is not at its end included; 0 if there was no KL at all.
    :param temperature: T of a cold posterior.
    :param standardiser: of the inputs, if they said so.
    :param y_standardiser: likewise of the targets.
    :param class_names: if the data have them.
    :param columns: the names of the inputs' columns, if they came from a table.
    :param tensors: what lives in Pyro's store under names of its own, and its constraints.
    """

    num_data: int
    input_shape: tuple[int, ...] | None = None
    eta: float = 1.0
    temperature: float = 1.0
    standardiser: Standardiser | None = None
    y_standardiser: Standardiser | None = None
    class_names: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    tensors: Mapping[str, tuple[Tensor, Any]] = field(default_factory=dict, repr=False, compare=False)

    def info(self) -> dict[str, Any]:
        """Return what a posterior says of it, as plain data; what is not known is left out."""
        scales = {"standardiser": self.standardiser, "y_standardiser": self.y_standardiser}
        return {
            "num_data": self.num_data,
            "eta": self.eta,
            "temperature": self.temperature,
            **({} if self.input_shape is None else {"input_shape": list(self.input_shape)}),
            **{name: scale.to_dict() for name, scale in scales.items() if scale is not None},
            **({} if self.class_names is None else {"class_names": list(self.class_names)}),
            **({} if self.columns is None else {"columns": list(self.columns)}),
        }

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> "Fitted | None":
        """Return what `info` tells, None if it does not even tell the number of rows."""
        if info.get("num_data") is None:
            return None
        shape, names, columns = info.get("input_shape"), info.get("class_names"), info.get("columns")
        scales = [info.get(key) for key in ("standardiser", "y_standardiser")]
        x_scale, y_scale = (None if scale is None else Standardiser.from_dict(scale) for scale in scales)
        return cls(
            int(info["num_data"]),
            None if shape is None else tuple(shape),
            float(info.get("eta", 1.0)),
            float(info.get("temperature", 1.0)),
            x_scale,
            y_scale,
            None if names is None else tuple(str(name) for name in names),
            None if columns is None else tuple(columns),
        )


def _place(guide: Any) -> tuple[Any, str]:
    """Return the object that holds what a guide was fitted with, and the attribute."""
    if isinstance(guide, types.MethodType):
        return guide.__self__, f"fitted_{guide.__func__.__name__}"
    return guide, "fitted"


def leave_fitted(guide: Any, fitted: Fitted) -> None:
    """Leave on a guide what it was fitted with."""
    holder, name = _place(guide)
    try:
        object.__setattr__(holder, name, fitted)
    except AttributeError as error:
        raise TypeError(
            f"the guide, a {type(guide).__name__}, takes no attribute {name!r}, where fit leaves what it was fitted "
            f"with: give its class a __dict__"
        ) from error


def fitted_of(guide: Any) -> Fitted | None:
    """Return what a guide was fitted with, None if it does not say."""
    record = getattr(*_place(guide), None)
    return record if isinstance(record, Fitted) else None
