"""
Every test starts from seed 0 and an empty parameter store; two threads, unless OMP_NUM_THREADS says otherwise.

Runs write their state after every epoch, here and in the processes that tests start, so that no test hangs on a clock.
"""

import os
from collections.abc import Iterator

import pyro
import pytest
import torch

from pyro_bnn.methods.base import CHECKPOINTS

os.environ[CHECKPOINTS] = "epoch"


@pytest.fixture(autouse=True)
def fresh_pyro() -> Iterator[None]:
    """Seed, clear, run, clear."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()
    torch.set_default_dtype(torch.float32)
