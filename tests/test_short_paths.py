"""What users type first: short names, numbers as people write them, mistakes answered in words, exports that say no."""

from pathlib import Path
from typing import Any

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.analysis.arviz import groups_of, import_arviz, loo
from pyro_bnn.cli import main
from pyro_bnn.guides import AutoMeanFieldNormal, AutoPoint
from pyro_bnn.inference.kl import from_spec
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.recipe import parse_settings

X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, 0] > 0).long()


def classifier(guide: Any = AutoMeanFieldNormal, **info: Any) -> pb.Posterior:
    model = BNN(MLP(2, 2, [4]), priors.FanIn(), likelihoods.Categorical(), num_data=len(X))
    return pb.Posterior(model, guide(model), info)


# -- short names -----------------------------------------------------------------------------------------------------


def test_a_rejection_curve_is_that_of_the_averaged_predictive() -> None:
    posterior = classifier()
    curve = posterior.rejection_curve(X, LABELS, num_samples=7, seed=3)
    p = posterior.predict(X, 7, seed=3).double()
    by_hand = pb.rejection_curve(-(p * p.log()).sum(-1), p.argmax(-1) == LABELS)
    assert torch.equal(curve.accuracy, by_hand.accuracy)
    assert torch.equal(curve.rejected, by_hand.rejected)
    with pytest.raises(ValueError, match="one label for each row"):
        posterior.rejection_curve(X, LABELS[:3], num_samples=2)


def test_what_is_detected_is_the_auroc_of_the_scores() -> None:
    posterior, far = classifier(), 5 * X
    found = posterior.detect(X, far, num_samples=6)
    inside, outside = (posterior.uncertainty(x, 6, seed=0) for x in (X, far))
    assert found["entropy"]["auroc"] == pytest.approx(pb.auroc(inside.total, outside.total))
    assert found["mutual_information"]["auroc"] == pytest.approx(pb.auroc(inside.epistemic, outside.epistemic))


def test_regressions_have_intervals_and_no_rejection_curve() -> None:
    model = BNN(MLP(2, 1, [4]), priors.FanIn(), likelihoods.Gaussian(0.1), num_data=len(X))
    posterior = pb.Posterior(model, AutoMeanFieldNormal(model))
    one, other = pb.predictive_interval(posterior, X, 0.9, 50, seed=0), posterior.interval(X, 0.9, 50, seed=0)
    assert torch.equal(one.lower, other.lower)
    with pytest.raises(ValueError, match="neither right nor wrong: use interval"):
        posterior.rejection_curve(X, X[:, 0])


# -- numbers and mistakes ----------------------------------------------------------------------------------------------


def test_numbers_are_read_as_people_write_them() -> None:
    read = parse_settings(["a=.5", "b=5.", "c=-.5e-3", "d=.", "e=.5.5", "f=1.e2", "g=..5", "h= .25 "])
    assert read == {"a": 0.5, "b": 5.0, "c": -0.0005, "d": ".", "e": ".5.5", "f": 100.0, "g": "..5", "h": 0.25}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "kl.eta=.5",
            "KL weight 'uniform' with {'eta': 0.5}: there is no 'eta'; it takes nothing; eta is a key of its own",
        ),
        ("kl.name=tempered", "KL weight 'tempered' with {}: eta is missing"),
        ("prior.sd=2", "there is no 'sd'"),
        ("guide.init_rhoo=1", "there is no 'init_rhoo' (did you mean 'init_rho'?)"),
    ],
)
def test_numbers_that_nothing_takes_are_answered_with_what_it_takes(
    setting: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["train", "perceptron-and", "--out", str(tmp_path / "run"), "--set", setting]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert "keyword argument" not in error
    assert not (tmp_path / "run").exists()


def test_a_misspelt_number_of_a_kl_weight_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"there is no 'etta' \(did you mean 'eta'\?\); it takes eta"):
        from_spec({"name": "tempered", "etta": 0.5})


def test_what_is_not_there_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "run"
    assert main(["train", "perceptron-and", "--resume", "--out", str(missing)]) == 2
    assert f"there is no run folder {missing} to go on with" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="leave out resume=True"):
        pb.train("perceptron-and", out=missing, resume=True)
    assert not missing.exists()


def test_the_help_of_the_range_test_says_what_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lr-range", "--help"]) == 0
    assert "a tenth of the rate of the lowest loss" in " ".join(capsys.readouterr().out.split())


# -- exports -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "guide", "split", "defined"),
    [
        ({}, AutoMeanFieldNormal, "train", True),
        ({}, AutoMeanFieldNormal, None, True),  # nobody said where the rows are from
        ({}, AutoMeanFieldNormal, "test", False),
        ({"eta": 0.1}, AutoMeanFieldNormal, "train", False),
        ({"eta": 0.1}, AutoMeanFieldNormal, None, False),
        ({"temperature": 0.5}, AutoMeanFieldNormal, "train", False),
        ({}, AutoPoint, "train", False),
    ],
)
def test_arviz_own_loo_has_nothing_to_answer_from_where_it_is_not_defined(
    info: dict[str, Any], guide: Any, split: Any, defined: bool
) -> None:
    posterior = classifier(guide, **info)
    idata = posterior.to_arviz(X, LABELS, 20, split=split, prior_samples=2)
    groups = set(groups_of(idata))
    assert ("log_likelihood" in groups) == defined
    assert ("log_density" in groups) == (not defined)
    asked = posterior.to_arviz(X, LABELS, 20, split=split, prior_samples=2, log_likelihood=True)
    kept = idata["log_likelihood" if defined else "log_density"]["obs"].values
    assert (asked["log_likelihood"]["obs"].values == kept).all()
    if not defined:
        with pytest.raises(Exception, match=r"log.likelihood"):
            import_arviz().loo(idata)
        with pytest.raises(ValueError, match="loo is not defined here"):
            loo(idata)


def test_arrays_of_64_bits_are_exported() -> None:
    posterior = classifier()
    wide = posterior.to_arviz(X.double().numpy(), LABELS.numpy(), 5, split="train", prior_samples=2)
    narrow = posterior.to_arviz(X, LABELS, 5, split="train", prior_samples=2)
    assert (wide["log_likelihood"]["obs"].values == narrow["log_likelihood"]["obs"].values).all()
    assert (wide["log_prior"]["net.layers.0.weight"].values == narrow["log_prior"]["net.layers.0.weight"].values).all()
