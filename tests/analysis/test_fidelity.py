"""Agreement and total variation: by hand, and refusals."""

import numpy as np
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.analysis.scores.fidelity import total_variations


def test_by_hand() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    r = np.array([[0.5, 0.5, 0.0], [0.8, 0.1, 0.1], [0.2, 0.2, 0.6]], dtype=np.float16)
    assert pb.agreement(p, r) == pytest.approx(2 / 3)  # ties go to the first class
    assert total_variations(p, r).tolist() == pytest.approx([0.3, 0.7, 0.2], abs=1e-3)
    assert pb.total_variation(p, r) == pytest.approx(0.4, abs=1e-3)


def test_limits_and_symmetry() -> None:
    p, r = torch.softmax(torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(0)), -1)
    assert pb.agreement(p, p) == 1
    assert pb.total_variation(p, p) == 0
    assert pb.total_variation(p, r) == pb.total_variation(r, p)
    assert pb.total_variation(torch.eye(2), torch.eye(2).flip(0)) == 1


def test_what_are_no_probabilities_is_refused() -> None:
    p = torch.full((3, 2), 0.5)
    with pytest.raises(ValueError, match=r"probabilities are \(3, 2\) and the reference \(2, 2\)"):
        pb.agreement(p, p[:2])
    with pytest.raises(ValueError, match="reference holds rows that are no probabilities"):
        pb.total_variation(p, p + 1)
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        pb.agreement(p[:, 0], p)
    with pytest.raises(ValueError, match="no probabilities"):
        pb.agreement(torch.tensor([[float("nan"), 1.0]]), torch.tensor([[0.5, 0.5]]))
