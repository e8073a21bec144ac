"""
One file per library, each using what its documentation tells users to do.

A contender has a title, the distribution it comes from, and two functions: `training_step(work)` returns a function
that takes one optimization step with Adam (or the library's own optimizer), and `predictor(work)` one that returns the
class probabilities (N, K) averaged over S draws. Both may raise: the reason is printed in place of a number.
"""

from benchmarks.contenders.base import Contender
from benchmarks.contenders.bayesian_torch import FLIPOUT, REPARAMETERISATION
from benchmarks.contenders.blitz import BLITZ
from benchmarks.contenders.deterministic import DETERMINISTIC
from benchmarks.contenders.ivon import IVON
from benchmarks.contenders.posteriors import POSTERIORS
from benchmarks.contenders.pyro_bnn import EAGER, FIT, LOCAL, SVI_STEP
from benchmarks.contenders.pyro_bnn import FLIPOUT as OWN_FLIPOUT
from benchmarks.contenders.stock_pyro import STOCK_PYRO
from benchmarks.contenders.torch_blue import TORCH_BLUE
from benchmarks.contenders.torchbnn import TORCHBNN

__all__ = ["BASE", "CONTENDERS", "LAYERS", "OURS", "WIDE", "Contender"]

BASE = DETERMINISTIC
OURS = (FIT, SVI_STEP, EAGER)
CONTENDERS: tuple[Contender, ...] = (
    DETERMINISTIC,
    *OURS,
    STOCK_PYRO,
    TORCHBNN,
    REPARAMETERISATION,
    FLIPOUT,
    BLITZ,
    POSTERIORS,
    TORCH_BLUE,
    IVON,
)
LAYERS: tuple[Contender, ...] = (DETERMINISTIC, FIT, LOCAL, OWN_FLIPOUT, REPARAMETERISATION, FLIPOUT)
"""Who draws a layer's outputs, or signs for each example, beside who draws its weights."""
WIDE: tuple[Contender, ...] = (DETERMINISTIC, FIT, EAGER, STOCK_PYRO, TORCHBNN, REPARAMETERISATION, BLITZ, IVON)
"""Who is measured where a step takes long."""
