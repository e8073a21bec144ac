"""Predictions of any number of draws are held in the memory of a few."""

import gc
import subprocess
import sys

import pytest
import torch

from pyro_bnn.analysis.scores.evaluation import evaluate_rows
from pyro_bnn.posterior import Posterior


class Counting:
    """A guide that counts, at every draw, the tensors alive that are as large as one draw's predictions."""

    def __init__(self, guide, size):
        self.guide, self.size, self.most = guide, size, 0

    def __call__(self, *args):
        alive = sum(1 for o in gc.get_objects() if type(o) is torch.Tensor and o.numel() == self.size)
        self.most = max(self.most, alive)
        return self.guide(*args)


@pytest.mark.parametrize("use", ["predict", "uncertainty", "evaluate"])
def test_no_draw_outlives_its_turn(make_classifier, use):
    case = make_classifier(n=77)
    most = []
    for num_samples in (3, 30):
        guide = Counting(case.posterior.guide, 77 * 3)
        posterior = Posterior(case.posterior.model, guide, case.posterior.info)
        if use == "evaluate":
            evaluate_rows(posterior, case.x, case.y, num_samples)
        else:
            getattr(posterior, use)(case.x, num_samples)
        most.append(guide.most)
    assert most[0] == most[1] <= 6


MEASURE = """
import resource, sys, torch
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.posterior import Posterior
model = BNN(MLP(784, 10, hidden=(20,)), priors.Kaiming(), likelihoods.Categorical(), 10000)
posterior = Posterior(model, AutoMeanFieldNormal(model))
x = torch.randn(10000, 1, 28, 28)
posterior.predict(x, 2)
posterior.predict(x, int(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_a_thousand_draws_of_ten_thousand_images_need_no_more_than_ten():
    peaks = []
    for num_samples in (10, 1000):
        command = [sys.executable, "-W", "ignore", "-c", MEASURE, str(num_samples)]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    # a thousand draws of (10,000, 10) in float32 would be 400 MB
    assert peaks[1] < peaks[0] + 40
