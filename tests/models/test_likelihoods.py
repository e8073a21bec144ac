"""Likelihoods: log-probabilities against the formulas, shapes with leading draws, and what they refuse."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from pyro_bnn import registry
from pyro_bnn.analysis.arviz import to_arviz
from pyro_bnn.analysis.report.page import build_report
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam
from pyro_bnn.posterior import Posterior

OUTPUT = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))  # (B, K)
LABELS = torch.tensor([0, 3, 1, 2, 3])
REAL = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))  # (B, D)
NO_PARAMETERS: dict[str, Tensor] = {}


def normal(y: Tensor, mean: Tensor, sd: Any) -> Tensor:
    """Log N(y; mean, sd^2) summed over targets, (B,)."""
    y, mean, sd = y.double(), mean.double(), torch.as_tensor(sd, dtype=torch.float64)
    return (-((y - mean) ** 2) / (2 * sd**2) - torch.log(sd) - 0.5 * math.log(2 * math.pi)).sum(-1)


def sigmoid_link() -> Tensor:
    logistic = 1 / (1 + torch.exp(-OUTPUT.double()))
    return (logistic / logistic.sum(-1, keepdim=True))[torch.arange(5), LABELS].log()


BITS = LABELS % 2


def clamped_link() -> Tensor:
    p = OUTPUT[:, 0].double().clamp(0.01, 0.99)
    return torch.where(BITS == 1, p, 1 - p).log()


COUNTS = torch.tensor([[0.0, 1, 2, 5], [3, 0, 0, 1], [7, 2, 1, 0], [0, 0, 4, 30], [1, 1, 1, 1]])  # (B, D)


def by_scipy(law: Any, y: Tensor) -> Tensor:
    """SciPy's log-density or log-probability in float64, summed over targets, (B,)."""
    log = law.logpmf if hasattr(law, "logpmf") else law.logpdf
    return torch.from_numpy(log(y.double().numpy())).sum(-1)


def student_t(df: float, scale: float) -> Tensor:
    return by_scipy(stats.t(df, OUTPUT.double().numpy(), scale), REAL)


def negative_binomial(a: float) -> Tensor:
    """Mean m and variance m + a m^2: SciPy's n = 1 / a and p = n / (n + m)."""
    return by_scipy(stats.nbinom(1 / a, 1 / (1 + a * OUTPUT.double().exp().numpy())), COUNTS)


CASES: list[tuple[likelihoods.Likelihood, Tensor, Tensor, dict[str, Tensor], Tensor]] = [
    (likelihoods.Categorical(), OUTPUT, LABELS, {}, -F.cross_entropy(OUTPUT.double(), LABELS, reduction="none")),
    (likelihoods.Categorical(link="sigmoid"), OUTPUT, LABELS, {}, sigmoid_link()),
    (
        likelihoods.Bernoulli(),
        OUTPUT[:, :1],
        BITS,
        {},
        -F.binary_cross_entropy_with_logits(OUTPUT[:, 0].double(), BITS.double(), reduction="none"),
    ),
    (
        likelihoods.Bernoulli(link="clamp", eps=0.01),
        OUTPUT[:, :1],
        BITS,
        {},
        clamped_link(),
    ),
    (likelihoods.Gaussian(noise=0.3), OUTPUT, REAL, {}, normal(REAL, OUTPUT, 0.3)),
    (likelihoods.Gaussian(), OUTPUT[:, :1], REAL[:, 0], {}, normal(REAL[:, :1], OUTPUT[:, :1], 1.0)),
    (likelihoods.LearnedGaussian(), OUTPUT, REAL, {"noise": torch.tensor(0.7)}, normal(REAL, OUTPUT, 0.7)),
    (
        likelihoods.HeteroscedasticGaussian(min_noise=0.1),
        OUTPUT,
        REAL[:, :2],
        {},
        normal(REAL[:, :2], OUTPUT[:, :2], torch.log1p(OUTPUT[:, 2:].double().exp()) + 0.1),
    ),
    (likelihoods.StudentT(df=3.5), OUTPUT, REAL, {"scale": torch.tensor(0.7)}, student_t(3.5, 0.7)),
    (
        likelihoods.StudentT(df=9.0, learn_df=True),
        OUTPUT,
        REAL,
        {"scale": torch.tensor(0.7), "df": torch.tensor(2.5)},
        student_t(2.5, 0.7),
    ),
    (likelihoods.Poisson(), OUTPUT, COUNTS, {}, by_scipy(stats.poisson(OUTPUT.double().exp().numpy()), COUNTS)),
    (
        likelihoods.Poisson(),
        OUTPUT[:, :1],
        COUNTS[:, 0].long(),
        {},
        by_scipy(stats.poisson(OUTPUT[:, :1].double().exp().numpy()), COUNTS[:, :1]),
    ),
    (likelihoods.NegativeBinomial(), OUTPUT, COUNTS, {"dispersion": torch.tensor(0.4)}, negative_binomial(0.4)),
]


def test_every_likelihood_is_in_the_table() -> None:
    known = {registry.look_up("likelihoods", name) for name in registry.BUILT_IN["likelihoods"]}
    assert {type(case[0]) for case in CASES} == known


@pytest.mark.parametrize(("likelihood", "output", "y", "parameters", "expected"), CASES)
def test_in_float64_the_log_probability_is_exact(
    likelihood: likelihoods.Likelihood, output: Tensor, y: Tensor, parameters: dict[str, Tensor], expected: Tensor
) -> None:
    wide = {name: torch.tensor(round(float(value), 4), dtype=torch.float64) for name, value in parameters.items()}
    fn: Any = likelihood.distribution(output.double(), wide)
    found = fn.log_prob(likelihood.shape_target(y, output.double()))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("likelihood", "output", "y", "parameters", "expected"), CASES)
def test_the_contract(
    likelihood: likelihoods.Likelihood, output: Tensor, y: Tensor, parameters: dict[str, Tensor], expected: Tensor
) -> None:
    """As many outputs as it says, the parameters it declares, a task, and a description that builds it again."""
    assert set(likelihood.parameters()) == set(parameters)
    classes = likelihood.task == "classification"
    targets = (
        (2 if isinstance(likelihood, likelihoods.Bernoulli) else 4) if classes else 1 if y.ndim == 1 else y.shape[1]
    )
    assert likelihood.outputs(targets) == output.shape[-1]
    assert likelihood.task in ("classification", "regression", "counts")
    spec = likelihood.spec()
    assert type(likelihood)(**{key: value for key, value in spec.items() if key != "name"}) == likelihood
    for bad in (0, -1, 1.5):
        with pytest.raises(ValueError, match=r"targets=.* from 1"):
            likelihood.outputs(bad)  # type: ignore[arg-type]


def test_a_likelihood_of_a_user_needs_no_more_than_before() -> None:
    class Own(likelihoods.Likelihood):
        def distribution(self, output: Tensor, parameters: Any = None) -> Any:
            return torch.distributions.Laplace(output, 1.0)

        def shape_target(self, y: Tensor, output: Tensor) -> Tensor:
            return y

    assert (Own().outputs(3), Own().task) == (3, "regression")


def rows(task: str, n: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, 3, generator=generator)
    mean = x @ torch.tensor([0.5, -0.5, 0.2])
    y = torch.poisson(mean.exp(), generator=generator) if task == "counts" else 50 + 10 * mean
    return x, y if task == "counts" else y + 3 * torch.randn(n, generator=generator)


NEW = [
    likelihoods.StudentT(),
    likelihoods.StudentT(df=5.0, learn_df=True),
    likelihoods.Poisson(),
    likelihoods.NegativeBinomial(),
]


@pytest.mark.parametrize("likelihood", NEW, ids=str)
@pytest.mark.parametrize("whole", [False, True], ids=["floats", "integers"])
def test_it_trains_predicts_evaluates_exports_saves_and_loads(
    likelihood: likelihoods.Likelihood, whole: bool, tmp_path: Path
) -> None:
    if whole and likelihood.task != "counts":
        pytest.skip("whole numbers are counts")
    x, y = rows(likelihood.task)
    y = y.long() if whole else y
    torch.manual_seed(0)
    model = BNN(MLP(3, likelihood.outputs(1), hidden=(4,)), priors.Kaiming(), likelihood, len(x))
    guide = AutoMeanFieldNormal(model)
    history = fit(
        model, guide, Adam({"lr": 0.05}), (x, y), epochs=8, batch_size=20, val=(x[:9], y[:9]), seed=0, standardise=True
    ).history
    assert history[-1]["loss"] < history[0]["loss"]
    posterior = Posterior(model, guide)
    assert ("y_standardiser" in posterior.info) == (likelihood.task == "regression")
    table = posterior.evaluate(x, y, 5)
    exported = to_arviz(posterior, x, y, 3, x_new=x[:4])
    assert exported.posterior_predictive["obs"].dtype.kind == ("i" if likelihood.task == "counts" else "f")
    assert exported.predictions["mean"].shape == (1, 3, 4)
    # the mixture's log density, by hand from the export's own draws
    log_density = torch.from_numpy(exported.log_likelihood["obs"].values[0]).double().logsumexp(0) - math.log(3)
    by_hand = posterior.evaluate(x, y, 3, seed=0)["s_draws"]["pred_nll"]
    assert float(-log_density.mean()) == pytest.approx(by_hand, rel=1e-4)
    again = Posterior.load(posterior.save(tmp_path / "p"))
    assert again.evaluate(x, y, 5) == table
    assert again.model.likelihood == likelihood
    assert "coverage" in build_report(posterior, (x, y), num_samples=3).lower()


@pytest.mark.parametrize("bad", [-1.0, 2.5])
@pytest.mark.parametrize("likelihood", [likelihoods.Poisson(), likelihoods.NegativeBinomial()], ids=str)
def test_what_is_no_count_is_refused(likelihood: likelihoods.Likelihood, bad: float) -> None:
    x, y = rows("counts")
    model = BNN(MLP(3, 1, hidden=(4,)), priors.Kaiming(), likelihood, len(x))
    guide = AutoMeanFieldNormal(model)
    wrong = y.clone()
    wrong[47] = bad  # not in the first batch, at which torch looks
    with pytest.raises(ValueError, match=r"y\[47\]"):
        fit(model, guide, Adam({"lr": 0.05}), (x, wrong), epochs=1, batch_size=20)
    posterior = Posterior(model, guide)
    for score in (posterior.evaluate, posterior.to_arviz):
        with pytest.raises(ValueError, match=r"y\[47\]=.* is no value of"):
            score(x, wrong, 2)


def test_counts_are_never_standardised() -> None:
    x, y = rows("counts")
    model = BNN(MLP(3, 1, hidden=(4,)), priors.Kaiming(), likelihoods.Poisson(), len(x))
    guide = AutoMeanFieldNormal(model)
    with pytest.raises(ValueError, match="standardise='y'"):
        fit(model, guide, Adam({"lr": 0.05}), (x, y), epochs=1, standardise="y")
    told = Posterior(model, guide, {"y_standardiser": {"mean": 3.0, "sd": 2.0}})
    with pytest.raises(ValueError, match="Poisson and the posterior has a y_standardiser"):
        told.predict(x, 2)


@pytest.mark.parametrize(("likelihood", "output", "y", "parameters", "expected"), CASES)
def test_log_probability_is_the_formula(
    likelihood: likelihoods.Likelihood, output: Tensor, y: Tensor, parameters: dict[str, Tensor], expected: Tensor
) -> None:
    fn: Any = likelihood.distribution(output, parameters)
    assert fn.batch_shape == (5,)
    found = fn.log_prob(likelihood.shape_target(y, output))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("likelihood", "output", "y", "parameters", "expected"), CASES)
def test_leading_draws_are_batch_dimensions(
    likelihood: likelihoods.Likelihood, output: Tensor, y: Tensor, parameters: dict[str, Tensor], expected: Tensor
) -> None:
    draws = torch.stack([output, output])  # (S, B, K)
    fn: Any = likelihood.distribution(draws, parameters)
    assert fn.batch_shape == (2, 5)
    found = fn.log_prob(likelihood.shape_target(y, draws))  # (S, B)
    torch.testing.assert_close(found.double(), expected.expand(2, 5), rtol=1e-5, atol=1e-5)


def test_only_the_learned_noise_is_a_parameter() -> None:
    (value, constraint) = likelihoods.LearnedGaussian(init_noise=0.2).parameters()["noise"]
    assert value == 0.2
    assert constraint is torch.distributions.constraints.positive
    assert likelihoods.Gaussian().parameters() == {}


@pytest.mark.parametrize(
    ("likelihood", "output", "y", "message"),
    [
        (likelihoods.Categorical(), OUTPUT, LABELS[:, None], r"\(5, 1\) for 5 rows"),
        (likelihoods.Categorical(), OUTPUT, LABELS[:3], r"\(3,\) for 5 rows"),
        (likelihoods.Bernoulli(), OUTPUT[:, :1], torch.zeros(5, 2), r"\(5, 2\) for 5 rows"),
        (likelihoods.Gaussian(), OUTPUT, REAL[:, 0], r"\(5,\).* need \(5, 4\)"),
        (likelihoods.Gaussian(), OUTPUT[:, :1], REAL, r"\(5, 4\).* need \(5, 1\)"),
        (likelihoods.LearnedGaussian(), OUTPUT, REAL[:, :1], r"\(5, 1\).* need \(5, 4\)"),
        (likelihoods.HeteroscedasticGaussian(), OUTPUT, REAL, r"\(5, 4\).* need \(5, 2\)"),
        (likelihoods.StudentT(), OUTPUT, REAL[:, :1], r"\(5, 1\).* need \(5, 4\)"),
        (likelihoods.Poisson(), OUTPUT, COUNTS[:, 0], r"\(5,\).* need \(5, 4\)"),
        (likelihoods.NegativeBinomial(), OUTPUT[:, :1], COUNTS, r"\(5, 4\).* need \(5, 1\)"),
    ],
)
def test_targets_that_would_broadcast_are_refused(
    likelihood: likelihoods.Likelihood, output: Tensor, y: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        likelihood.shape_target(y, output)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: likelihoods.Categorical(link="probit"), "link='probit' .* 'softmax' or 'sigmoid'"),  # type: ignore[arg-type]
        (lambda: likelihoods.Bernoulli(link="relu"), "link='relu' .* 'logit' or 'clamp'"),  # type: ignore[arg-type]
        (lambda: likelihoods.Bernoulli(eps=0.5), "eps=0.5 .* between 0 and 0.5"),
        (lambda: likelihoods.Gaussian(noise=0.0), "noise=0.0 .* above 0"),
        (lambda: likelihoods.Gaussian(noise=math.nan), "noise=nan .* finite"),
        (lambda: likelihoods.LearnedGaussian(init_noise=-1.0), "init_noise=-1.0 .* above 0"),
        (lambda: likelihoods.HeteroscedasticGaussian(min_noise=0.0), "min_noise=0.0 .* above 0"),
        (lambda: likelihoods.StudentT(df=0.0), "df=0.0 .* above 0"),
        (lambda: likelihoods.StudentT(df=2.0, learn_df=True), "df=2.0 .* above 2"),
        (lambda: likelihoods.StudentT(init_scale=math.inf), "init_scale=inf .* above 0"),
        (lambda: likelihoods.NegativeBinomial(init_dispersion=0.0), "init_dispersion=0.0 .* above 0.0001"),
        (lambda: likelihoods.Bernoulli().outputs(3), "2 classes apart and there are 3"),
        (lambda: likelihoods.Bernoulli().distribution(OUTPUT), "4 outputs, Bernoulli takes 1"),
        (lambda: likelihoods.HeteroscedasticGaussian().distribution(OUTPUT[:, :3]), "3 outputs; .* need 2 D"),
    ],
)
def test_bad_input_names_value_and_remedy(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("batch_shape", [(5,), (3, 5)])
def test_a_plate_leaves_class_probabilities_to_the_last_bit(batch_shape: tuple[int, ...]) -> None:
    fn: Any = likelihoods.Categorical().distribution(100 * OUTPUT)
    expanded = fn.expand(torch.Size(batch_shape))
    assert expanded.batch_shape == batch_shape
    assert torch.equal(expanded.logits, F.log_softmax(100 * OUTPUT, -1).expand(*batch_shape, 4))
    labels = LABELS.expand(batch_shape)
    assert torch.equal(expanded.log_prob(labels), expanded.logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1))


@pytest.mark.parametrize("label", [-100, -1, 4])
def test_a_label_that_is_no_class_has_no_probability(label: int) -> None:
    fn: Any = likelihoods.Categorical().distribution(OUTPUT)
    fn._validate_args = False
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        fn.log_prob(torch.full((5,), label))
