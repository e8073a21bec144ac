"""What `fit` checks of its arguments, and Pyro's and torch's own checks around it: on for its first step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import pyro
import torch
from pyro.infer import ELBO
from pyro.optim import PyroOptim

from pyro_bnn.common.turns import alone

__all__ = ["check_arguments", "validate_first_only"]


def check_arguments(epochs: int, optim: Any, elbo: Any, val: Any, monitor: str, patience: int | None) -> None:
    """Refuse what cannot be trained with, or never ends as asked."""
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ValueError(f"epochs={epochs!r} is not a number of epochs: pass an integer of at least 1")
    if not isinstance(optim, PyroOptim):
        raise TypeError(
            f"optim is a {type(optim).__name__}; pass one of pyro_bnn.optim or pyro.optim, e.g. Adam({{'lr': 1e-3}})"
        )
    if isinstance(elbo, type) or not isinstance(elbo, ELBO):
        raise TypeError(f"elbo={elbo!r} is not an ELBO object; pass e.g. TraceMeanField_ELBO()")
    if patience is not None and (patience < 1 or (val is None and monitor.startswith("val"))):
        raise ValueError(
            f"patience={patience} with monitor={monitor!r} cannot stop this fit: pass val=(x, y) and a patience >= 1"
        )


@final
class _Checks:
    """Pyro's and torch's argument checks, and how many fits are under way: they are put back by the last of them."""

    fits = 0
    torch_on = True
    pyro_on = True


@contextmanager
def validate_first_only() -> Iterator[Callable[[], None]]:
    """Leave Pyro's and torch's argument checks on until the callable is called; restore them at the end."""
    with alone():
        if _Checks.fits == 0:
            _Checks.torch_on = torch.distributions.Distribution._validate_args
            _Checks.pyro_on = pyro.infer.util.is_validation_enabled()
        _Checks.fits += 1

    def off() -> None:
        pyro.enable_validation(False)

    try:
        yield off
    finally:
        with alone():
            _Checks.fits -= 1
            if _Checks.fits == 0:
                pyro.enable_validation(_Checks.pyro_on)
                torch.distributions.Distribution.set_default_validate_args(_Checks.torch_on)
