import pytest
import torch

from pyro_bnn.analysis.scores.acquisition import acquire, acquisition_scores
from pyro_bnn.analysis.scores.metrics import entropy, log_mean_exp
from pyro_bnn.analysis.scores.uncertainty import mutual_information


def test_bald_is_the_mutual_information_and_entropy_the_total(classes):
    log_probs = classes.posterior.draws(classes.x, 25, seed=1).double().log()
    bald = acquisition_scores(classes.posterior, classes.x, "bald", 25, seed=1)
    torch.testing.assert_close(bald.double(), mutual_information(log_probs), atol=1e-5, rtol=0)
    total = acquisition_scores(classes.posterior, classes.x, "entropy", 25, seed=1)
    torch.testing.assert_close(total.double(), entropy(log_mean_exp(log_probs)), atol=1e-5, rtol=0)


def test_the_best_rows_come_first(classes):
    chosen = acquire(classes.posterior, classes.x, 5, num_samples=25, seed=1)
    scores = acquisition_scores(classes.posterior, classes.x, num_samples=25, seed=1)
    assert chosen.tolist() == scores.argsort(descending=True)[:5].tolist()


def test_variance_for_numbers_and_targets_add_up(make_regressor):
    case = make_regressor(targets=2)
    scores = acquisition_scores(case.posterior, case.x, "variance", 10, seed=0)
    means = torch.stack([d.mean for d in case.posterior.stream(case.x, 10, seed=0)])
    torch.testing.assert_close(scores.double(), means.double().var(0, correction=0).sum(-1), rtol=1e-4, atol=0)


def test_scores_that_do_not_fit_are_refused(classes, numbers):
    with pytest.raises(ValueError, match="does not fit"):
        acquisition_scores(classes.posterior, classes.x, "variance", 2)
    with pytest.raises(ValueError, match="use 'variance'"):
        acquisition_scores(numbers.posterior, numbers.x, "bald", 2)
    with pytest.raises(ValueError, match="choose one of bald"):
        acquisition_scores(classes.posterior, classes.x, "bold", 2)
    with pytest.raises(ValueError, match="pass 1 to 40"):
        acquire(classes.posterior, classes.x, 41)
