"""The embedded toy sets: they are what they are said to be, and the files are what the script writes."""

import numpy as np
import pytest
import torch

from pyro_bnn.data import load_data
from pyro_bnn.data.make_toys import toys
from pyro_bnn.data.sources import read_source


@pytest.mark.parametrize("name", ["and", "toy-line", "toy-cubic"])
def test_the_files_are_what_the_script_writes(name: str) -> None:
    source = read_source(name)
    for part, values in toys()[name].items():
        np.testing.assert_array_equal(getattr(source, part), values)


def test_and() -> None:
    data = load_data("and", standardise=False)
    assert data.task == "classification"
    assert data.num_classes == 2
    torch.testing.assert_close(data.train.x.prod(1), data.train.y.float())


def test_the_line_is_a_line() -> None:
    data = load_data("toy-line", standardise=False)
    assert data.task == "regression"
    design = torch.cat([data.train.x, torch.ones(100, 1)], 1)
    slope, intercept = torch.linalg.lstsq(design, data.train.y[:, None]).solution[:, 0].tolist()
    assert slope == pytest.approx(2, abs=0.2)  # standard error 0.05
    assert intercept == pytest.approx(-1, abs=0.12)  # standard error 0.03


def test_the_cubic_knows_nothing_beyond_four() -> None:
    data = load_data("toy-cubic", standardise=False)
    assert data.train.x.abs().max() < 4
    assert data.test.x.abs().max() == 6
    noise = data.test.y - data.test.x[:, 0] ** 3
    assert float(noise.std()) == pytest.approx(3, abs=0.6)  # standard error 0.15
