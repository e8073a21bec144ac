"""fit: the loss and its scale, exact posteriors, what is logged, resumption, and what is refused."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from programs import (
    CLASSES,
    FEATURES,
    ROWS,
    Snapshots,
    Watch,
    batch_norm,
    classes,
    grouped,
    hierarchical_logistic,
    same_tensors,
    stock_fit,
    with_parameter,
)
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from targets import LinearRegression, centred, correlated
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from pyro_bnn import optim
from pyro_bnn.data import Split
from pyro_bnn.guides import AutoLowRankNormal, AutoMeanFieldNormal
from pyro_bnn.inference import (
    Callback,
    Diverged,
    FitState,
    FlatMeanField_ELBO,
    TraceScoreFunction_ELBO,
    kl,
    per_datum,
    scale_kl,
)
from pyro_bnn.inference.checkpoint import load_state, parameters_of, save_state
from pyro_bnn.models import BNN, MLP, likelihoods, priors


@pytest.fixture(params=[False, True], ids=["global", "module_local"])
def store(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run once with Pyro's global parameter store and once with module-local parameters."""
    with pyro.settings.context(module_local_params=request.param):
        yield request.param


def network(net: nn.Module | None = None, likelihood: likelihoods.Likelihood | None = None, n: int = ROWS) -> BNN:
    return BNN(net or MLP(FEATURES, CLASSES, [5]), priors.Kaiming(), likelihood or likelihoods.Categorical(), n)


def adam(lr: float = 0.01) -> pyro.optim.PyroOptim:
    return pyro.optim.Adam({"lr": lr})


def still() -> pyro.optim.PyroOptim:
    """An optimizer that moves nothing."""
    return pyro.optim.SGD({"lr": 0.0})


def point(model: Any) -> AutoDelta:
    """A guide of fixed weights."""
    return AutoDelta(poutine.block(model, hide=["obs"]))


# -- one loss scale --------------------------------------------------------------------------------------------------


def bnn_case() -> tuple[Any, Any, Any, Any]:
    model = network().double()
    x, y = classes()
    return model, AutoMeanFieldNormal(model), x.double(), y


def hand_written_case() -> tuple[Any, Any, Any, Any]:
    torch.set_default_dtype(torch.float64)
    x, y = grouped()
    guide = AutoMeanFieldNormal(hierarchical_logistic)
    guide(x.double())
    return hierarchical_logistic, guide, x.double(), y.double()


@pytest.mark.parametrize("case", [bnn_case, hand_written_case])
def test_fit_s_loss_is_stock_svi_s_loss_over_n(case: Callable[[], Any], store: bool) -> None:
    """Same noise: the same losses after division by N, and with a scale-free optimizer the same parameters."""
    model, guide, x, y = case()
    start = {name: value.clone() for name, value in guide.state_dict().items()}
    steps = 5
    losses: list[float] = []
    scale_free = pyro.optim.Adam({"lr": 0.01, "eps": 1e-30})
    watch = Watch(step=lambda state: losses.append(float(state.batch_loss)))
    stock_fit(model, guide, scale_free, (x, y), epochs=steps, batch_size=ROWS, seed=7, callbacks=[watch])
    fitted = {name: value.clone() for name, value in guide.state_dict().items()}
    guide.load_state_dict(start)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01, "eps": 1e-30}), TraceMeanField_ELBO())
    pyro.set_rng_seed(7)
    stock = [svi.step(x, y) / ROWS for _ in range(steps)]
    assert losses == pytest.approx(stock, rel=1e-9)
    for name, value in guide.state_dict().items():
        torch.testing.assert_close(value, fitted[name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("batch_size", [7, 8, 24])
@pytest.mark.parametrize(
    ("weight", "eta"),
    [
        (kl.uniform(), 1.0),
        (kl.tempered(0.3), 0.3),
        (kl.geometric(2.0), 1.0),
        (kl.blundell() * kl.tempered(2.0), 2.0),
        (kl.geometric(0), 0.0),
    ],
)
def test_batches_add_up_to_the_full_loss(weight: kl.KLWeight, eta: float, batch_size: int) -> None:
    """With weights held fixed, sum_b (B_b / N) loss_b is NLL + eta KL / N of all rows, last short batch included."""
    model = network().double()
    x, y = classes()
    x = x.double()
    guide = point(model)
    guide(x)
    with torch.no_grad():
        weights = guide.median()
        nll = -float(model.observation(x, weights).log_prob(y).mean())
        kl_all = -sum(float(p.log_prob(weights[f"net.{name}"])) for name, p in model.priors().items())
    line = stock_fit(model, guide, still(), (x, y), epochs=1, batch_size=batch_size, kl=weight).history[0]
    assert line["nll"] == pytest.approx(nll, rel=1e-10)
    assert line["kl"] == pytest.approx(kl_all / ROWS, rel=1e-10)
    assert line["loss"] == pytest.approx(nll + eta * kl_all / ROWS, rel=1e-10)
    assert line["elbo"] == pytest.approx(-(nll + kl_all / ROWS), rel=1e-10)
    assert line["kl_weight"] == pytest.approx(eta, rel=1e-10)


def test_batches_add_up_with_the_sampled_guide_too() -> None:
    model = network().double()
    guide = AutoMeanFieldNormal(model)
    x, y = classes()
    x = x.double()
    with per_datum(ROWS), scale_kl(1.0):

        def loss(rows: slice) -> float:
            torch.manual_seed(5)
            return float(TraceMeanField_ELBO().loss(model, guide, x[rows], y[rows]))

        parts = [slice(0, 10), slice(10, 20), slice(20, ROWS)]
        together = sum((rows.stop - rows.start) / ROWS * loss(rows) for rows in parts)
        assert together == pytest.approx(loss(slice(0, ROWS)), rel=1e-10)


@pytest.mark.parametrize("elbo", [TraceMeanField_ELBO(), TraceMeanField_ELBO(3, vectorize_particles=True)])
def test_loss_is_nll_plus_weighted_kl(elbo: Any) -> None:
    model = network().double()
    guide = AutoMeanFieldNormal(model)
    x, y = classes()
    data = (x.double(), y)
    line = stock_fit(model, guide, still(), data, epochs=1, batch_size=5, kl=kl.tempered(0.2), elbo=elbo).history[0]
    assert line["loss"] == pytest.approx(line["nll"] + 0.2 * line["kl"], rel=1e-10)


def test_sample_weights_count_rows() -> None:
    model = network().double()
    x, y = classes()
    x = x.double()
    guide = point(model)
    guide(x)
    weights = torch.ones(ROWS, dtype=torch.float64)
    weights[0], weights[1] = 2.0, 0.0
    line = stock_fit(model, guide, still(), (x, y, weights), epochs=1, batch_size=5).history[0]
    rows = torch.tensor([0, 0, *range(2, ROWS)])
    doubled = stock_fit(model, guide, still(), (x[rows], y[rows]), epochs=1, batch_size=ROWS).history[0]
    assert line["nll"] == pytest.approx(doubled["nll"], rel=1e-10)


# -- exact posteriors ------------------------------------------------------------------------------------------------


def regression(target: LinearRegression) -> tuple[BNN, AutoMeanFieldNormal]:
    layer = nn.Linear(target.dim, 1, bias=False)
    model = BNN(layer, priors.Normal(scale=target.prior), likelihoods.Gaussian(target.noise), target.num_data).double()
    return model, AutoMeanFieldNormal(model)


def advance(model: BNN, guide: AutoMeanFieldNormal, target: LinearRegression, steps: int, **numbers: Any) -> None:
    particles = numbers.pop("particles", 1)
    stock = TraceMeanField_ELBO(num_particles=particles, vectorize_particles=particles > 1, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"clip_norm": math.inf, **numbers}), stock)
    for _ in range(steps):
        svi.step(target.x, target.y)


def errors(guide: AutoMeanFieldNormal, target: LinearRegression) -> tuple[float, float]:
    """Largest error of a mean and of a scale, in posterior standard deviations."""
    loc, scale = target.mean_field_optimum()
    found = guide.site("net.weight")
    return float(((found.loc[0] - loc) / scale).abs().max()), float((found.scale[0] / scale - 1).abs().max())


def test_stock_elbo_reaches_the_conjugate_posterior() -> None:
    target = centred(num_data=40)
    torch.testing.assert_close(target.mean_field_optimum()[1], target.posterior()[1].diagonal().sqrt())
    model, guide = regression(target)
    advance(model, guide, target, 1500, lr=0.05, lrd=0.9955)
    loc, scale = errors(guide, target)
    assert loc < 0.08
    assert scale < 0.05


@pytest.mark.parametrize("make", [centred, correlated])
def test_many_particles_reach_it_within_one_per_cent(make: Callable[..., LinearRegression]) -> None:
    """On a correlated design the target scale is 1 / sqrt(precision_ii), below the marginal standard deviation."""
    target = make(num_data=40)
    model, guide = regression(target)
    advance(model, guide, target, 600, lr=0.05)
    advance(model, guide, target, 400, lr=0.05, lrd=0.98, particles=500)
    loc, scale = errors(guide, target)
    assert loc < 0.01
    assert scale < 0.01


def test_averaged_iterates_reach_it_through_fit() -> None:
    target = centred(num_data=40)
    model, guide = regression(target)
    with torch.no_grad():  # start at the posterior: what is tested is the noise's mean
        loc, scale = target.mean_field_optimum()
        guide.get_parameter("loc_unconstrained").copy_(loc)
        guide.get_parameter("rho_unconstrained").copy_(torch.log(torch.expm1(scale)))
    sums = [torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)]

    def add(state: FitState) -> None:
        for total, value in zip(sums, guide.site("net.weight"), strict=True):
            total += value[0] / 300

    stock_fit(
        model,
        guide,
        pyro.optim.SGD({"lr": 0.05}),
        (target.x, target.y[:, None]),
        epochs=300,
        batch_size=40,
        seed=1,
        callbacks=[Watch(step=add)],
        elbo=TraceMeanField_ELBO(256, vectorize_particles=True, max_plate_nesting=1),
    )
    assert float(((sums[0] - loc) / scale).abs().max()) < 0.01
    assert float((sums[1] / scale - 1).abs().max()) < 0.01


# -- what trains -----------------------------------------------------------------------------------------------------


def test_batch_norm_trains_its_weights_and_validation_leaves_its_statistics(store: bool) -> None:
    model = network(batch_norm())
    guide = AutoMeanFieldNormal(model)
    norm: Any = model.template[1]  # type: ignore[index]
    weight = model.get_parameter("deterministic.1.weight_unconstrained").detach().clone()
    x, y = classes()
    tracked = []
    stock_fit(
        model,
        guide,
        adam(),
        (x, y),
        epochs=2,
        batch_size=8,
        val=(x, y),
        callbacks=[Watch(epoch=lambda state: tracked.append(int(norm.num_batches_tracked)))],
    )
    assert not torch.equal(model.get_parameter("deterministic.1.weight_unconstrained").detach(), weight)
    assert tracked == [3, 6]  # 3 batches an epoch; the first look, the KL and validation add none
    assert not torch.equal(norm.running_mean, torch.zeros(5))
    assert norm.training


def test_validation_draws_do_not_move_the_statistics_nor_the_random_state() -> None:
    x, y = classes()
    found = []
    for val in (None, (x, y)):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = network(batch_norm())
        guide = AutoMeanFieldNormal(model)
        stock_fit(model, guide, adam(), (x, y), epochs=3, batch_size=7, seed=1, val=val, val_samples=3)
        found.append(parameters_of(model, guide))
    assert same_tensors(*found)


def test_learned_noise_reaches_the_data_s(store: bool) -> None:
    x = torch.randn(400, 1)
    y = 2 * x[:, 0] + 0.3 * torch.randn(400)
    model = BNN(nn.Linear(1, 1), priors.Normal(), likelihoods.LearnedGaussian(), 400)
    guide = AutoMeanFieldNormal(model)
    stock_fit(model, guide, adam(0.05), (x, y), epochs=40, batch_size=100, seed=0)
    residual = float((y - 2 * x[:, 0]).std())
    assert float(model._noise()["noise"].detach()) == pytest.approx(residual, rel=0.05)


def test_a_parameter_of_a_hand_written_program_trains() -> None:
    x = torch.randn(ROWS, FEATURES)
    y = x.sum(-1)
    guide = AutoMeanFieldNormal(with_parameter)
    stock_fit(with_parameter, guide, adam(0.1), (x, y), epochs=200, batch_size=ROWS)
    assert float(pyro.param("noise").detach()) < 0.2


def test_a_bare_nn_parameter_of_a_hand_written_module_trains(store: bool) -> None:
    class Program(pyro.nn.PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor, y: Tensor | None = None) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
            with pyro.plate("data", ROWS, subsample=torch.arange(len(x))):
                pyro.sample("obs", dist.Normal(x @ w + self.offset, 1.0), obs=y)

    model = Program()
    x = torch.randn(ROWS, FEATURES)
    stock_fit(model, AutoMeanFieldNormal(model), adam(0.1), (x, x.sum(-1) + 3), epochs=60, batch_size=ROWS)
    assert float(model.offset.detach()) > 2


@pytest.mark.parametrize("which", ["loc", "scale"])
def test_frozen_parts_stay(which: str, store: bool) -> None:
    model = network()
    guide = AutoMeanFieldNormal(model, freeze=which)
    before = guide.site("net.layers.0.weight")
    stock_fit(model, guide, adam(), classes(), epochs=1, batch_size=8)
    after = guide.site("net.layers.0.weight")
    assert torch.equal(getattr(before, which), getattr(after, which))
    other = {"loc": "scale", "scale": "loc"}[which]
    assert not torch.equal(getattr(before, other), getattr(after, other))


@pytest.mark.parametrize(
    "data",
    [
        lambda x, y: Split(x, y),
        lambda x, y: [x, y],
        lambda x, y: (x.numpy(), y.numpy()),
        lambda x, y: TensorDataset(x, y),
        lambda x, y: Subset(TensorDataset(x, y), range(len(x))),
        lambda x, y: (pandas.DataFrame(x.numpy(), columns=list("abc")), pandas.Series(y.numpy())),
        lambda x, y: (x.double().numpy(), y.to(torch.uint8).numpy()),
    ],
)
def test_every_form_of_data_gives_the_same_bits(data: Callable[[Tensor, Tensor], Any]) -> None:
    x, y = classes()
    found = []
    for form in (lambda x, y: (x, y), data):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = network()
        guide = AutoMeanFieldNormal(model)
        stock_fit(model, guide, adam(), form(x, y), epochs=2, batch_size=7, seed=1)
        found.append(parameters_of(model, guide))
    assert same_tensors(*found)


def test_augment_changes_training_rows_only() -> None:
    x, y = classes()
    seen: list[Tensor] = []

    def erase(rows: Tensor) -> Tensor:
        seen.append(rows)
        return torch.zeros_like(rows)

    model = network(MLP(FEATURES, CLASSES, []))
    guide = point(model)
    guide(x)
    line = stock_fit(model, guide, still(), (x, y), epochs=1, batch_size=7, augment=erase, val=(x, y)).history[0]
    assert [len(rows) for rows in seen] == [7, 7, 7, 3]
    assert torch.equal(torch.cat(seen).sort(0).values, x.sort(0).values)
    with torch.no_grad():
        fn: Any = partial(model.observation, latents=guide.median())
        assert line["nll"] == pytest.approx(-float(fn(torch.zeros_like(x)).log_prob(y).mean()), rel=1e-5)
        assert line["val_nll"] == pytest.approx(-float(fn(x).log_prob(y).mean()), rel=1e-5)


# -- the same bits ---------------------------------------------------------------------------------------------------


def run(seed: int | None, model_seed: int = 0, **options: Any) -> dict[str, dict[str, Tensor]]:
    pyro.clear_param_store()
    pyro.set_rng_seed(model_seed)
    model = network(batch_norm())
    guide = AutoMeanFieldNormal(model)
    stock_fit(model, guide, adam(), classes(), epochs=2, batch_size=7, seed=seed, **options)
    return parameters_of(model, guide)


def test_a_seed_fixes_every_bit(store: bool) -> None:
    first = run(3)
    torch.randn(5)
    assert same_tensors(first, run(3))
    assert not same_tensors(first, run(4))


def test_without_a_seed_the_global_state_goes_on() -> None:
    assert same_tensors(run(None), run(None))  # `run` seeds the building, and the fit goes on from there
    assert not same_tensors(run(None, model_seed=1), run(None))


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "pyro Adam": adam,
    "pyro ClippedAdam": lambda: pyro.optim.ClippedAdam({"lr": 0.01, "lrd": 0.99}),
    "Adam": lambda: optim.Adam({"lr": 0.01}),
    "AdaBound": lambda: optim.AdaBound({"lr": 0.01, "final_lr": 0.1}),
    "PerSite": lambda: optim.PerSite(loc=optim.AdaBayes(lr=0.01, lr_sgd=0.1, batch_size=7), scale=optim.Adam(lr=0.01)),
}
GUIDES: dict[str, Callable[[Any], Any]] = {
    "flat": AutoMeanFieldNormal,
    "per site": lambda model: AutoMeanFieldNormal(model, groups="site"),
    "stock": lambda model: AutoNormal(poutine.block(model, hide=["obs"])),
    "low rank": lambda model: AutoLowRankNormal(model, rank=2),
}


@pytest.mark.parametrize(
    ("optimizer", "guide", "elbo"),
    [
        *((optimizer, guide, TraceMeanField_ELBO) for optimizer in OPTIMIZERS for guide in list(GUIDES)[:3]),
        ("pyro Adam", "flat", FlatMeanField_ELBO),
        ("PerSite", "per site", FlatMeanField_ELBO),
        ("Adam", "flat", TraceScoreFunction_ELBO),
        ("Adam", "low rank", TraceScoreFunction_ELBO),
    ],
)
def test_resumed_is_uninterrupted(optimizer: str, guide: str, elbo: Any, store: bool, tmp_path: Path) -> None:
    """Bit for bit, with other objects (hence other serial names) after the break, through a file."""

    def attempt(**options: Any) -> Snapshots:
        pyro.clear_param_store()
        pyro.set_rng_seed(1)
        model = network(batch_norm())
        kept = Snapshots()
        x, y = classes()
        stock_fit(
            model,
            GUIDES[guide](model),
            OPTIMIZERS[optimizer](),
            (x, y),
            epochs=4,
            batch_size=7,
            seed=3,
            val=(x, y),
            callbacks=[kept],
            elbo=elbo(),
            augment=lambda rows: rows + 0.1 * torch.randn_like(rows),
            **options,
        )
        return kept

    whole = attempt()
    save_state(tmp_path / "state", whole.states[2])
    torch.randn(17)
    resumed = attempt(resume=load_state(tmp_path / "state"))
    assert sorted(resumed.states) == [3, 4]
    assert same_tensors(resumed.states[4]["parameters"], whole.states[4]["parameters"])
    lines = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in kept.states[4]["progress"]["history"]]
        for kept in (whole, resumed)
    ]
    assert lines[0] == lines[1]


def test_a_state_is_a_snapshot() -> None:
    """It does not change as the fit goes on, nor as another one resumes from it."""
    states: dict[int, Any] = {}
    frozen = Snapshots()
    model = network()
    guide = AutoMeanFieldNormal(model)
    plain = Watch(epoch=lambda state: states.setdefault(state.epoch, state.state_dict()))
    data = classes()
    stock_fit(model, guide, adam(), data, epochs=4, batch_size=7, seed=3, callbacks=[plain, frozen])

    def flat(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.tolist()
        if isinstance(value, dict):
            return {name: flat(v) for name, v in value.items()}
        return [flat(v) for v in value] if isinstance(value, (list, tuple)) else value

    assert flat(states[2]) == flat(frozen.states[2])
    stock_fit(model, guide, adam(), data, epochs=4, batch_size=7, seed=3, resume=states[2])
    assert flat(states[2]) == flat(frozen.states[2])


# -- ending ----------------------------------------------------------------------------------------------------------


def test_early_stopping_counts_epochs_without_a_better_validation() -> None:
    x, y = classes()
    model = network()
    guide = AutoMeanFieldNormal(model)
    result = stock_fit(model, guide, still(), (x, y), epochs=50, batch_size=8, val=(x, y), patience=3)
    assert len(result.history) == 4
    assert result.best_epoch == 1
    assert result.reason == "val_nll has not improved for 3 epochs"


def test_resuming_where_patience_ran_out_goes_no_further() -> None:
    x, y = classes()
    model = network()
    guide = AutoMeanFieldNormal(model)
    kept = Snapshots()
    whole = stock_fit(model, guide, still(), (x, y), epochs=50, batch_size=8, val=(x, y), patience=2, callbacks=[kept])
    again = stock_fit(
        model, guide, still(), (x, y), epochs=50, batch_size=8, val=(x, y), patience=2, resume=kept.states[3]
    )
    assert (len(again.history), again.reason) == (3, whole.reason)


def test_improving_fits_run_to_the_end() -> None:
    x, y = classes()
    model = network()
    guide = AutoMeanFieldNormal(model)
    result = stock_fit(model, guide, adam(), (x, y), epochs=4, batch_size=ROWS, patience=1, monitor="kl")
    assert result.reason == "all epochs done"
    assert result.best_epoch == 4
    assert [line["epoch"] for line in result.history] == [1, 2, 3, 4]
    assert result.seconds == result.history[-1]["seconds"] > 0


class Recorder(Callback):
    """Write down what is called, and stop or interrupt at a step."""

    def __init__(self, stop: int | None = None, interrupt: int | None = None) -> None:
        self.calls: list[str] = []
        self.stop, self.interrupt = stop, interrupt

    def start(self, state: FitState) -> None:
        self.calls.append("start")

    def step(self, state: FitState) -> None:
        self.calls.append("step")
        if state.step == self.interrupt:
            raise KeyboardInterrupt
        if state.step == self.stop:
            state.stop = "seen enough"

    def epoch(self, state: FitState) -> None:
        self.calls.append("epoch")

    def end(self, state: FitState) -> None:
        self.calls.append("end")


def test_callbacks_are_called_in_order() -> None:
    recorder = Recorder()
    model = network()
    stock_fit(model, AutoMeanFieldNormal(model), adam(), classes(), epochs=2, batch_size=12, callbacks=[recorder])
    assert recorder.calls == ["start", *["step", "step", "epoch"] * 2, "end"]


def test_a_callback_may_stop_and_a_keyboard_interrupt_ends_cleanly() -> None:
    model = network()
    guide = AutoMeanFieldNormal(model)
    recorder = Recorder(stop=1)
    result = stock_fit(model, guide, adam(), classes(), epochs=9, batch_size=12, callbacks=[recorder])
    assert (result.reason, len(result.history)) == ("seen enough", 1)
    recorder = Recorder(interrupt=3)
    result = stock_fit(model, guide, adam(), classes(), epochs=9, batch_size=12, callbacks=[recorder])
    assert (result.reason, len(result.history)) == ("interrupted", 1)
    assert recorder.calls[-1] == "end"


def test_validation_flags_of_pyro_and_torch_come_back() -> None:
    def flags() -> tuple[bool, bool, bool]:
        return (
            torch.distributions.Distribution._validate_args,
            pyro.distributions.distribution.Distribution._validate_args
            if hasattr(pyro.distributions.distribution.Distribution, "_validate_args")
            else True,
            pyro.infer.util.is_validation_enabled(),
        )

    inside: list[bool] = []
    model = network()
    guide = AutoMeanFieldNormal(model)
    before = flags()
    assert before[0]
    watch = Watch(epoch=lambda state: inside.append(pyro.infer.util.is_validation_enabled()))
    stock_fit(model, guide, adam(), classes(), epochs=1, batch_size=8, callbacks=[watch])
    assert inside == [False]
    assert flags() == before
    with pytest.raises(KeyError):
        stock_fit(
            model, guide, adam(), classes(), epochs=1, callbacks=[Watch(epoch=lambda state: {}["x"])], batch_size=8
        )
    assert flags() == before


@pytest.mark.filterwarnings("ignore:Encountered NaN")
@pytest.mark.parametrize(("batch_size", "message"), [(8, r"loss is nan at step 2 \(epoch 1\)"), (ROWS, "after step 1")])
def test_divergence_names_the_step(batch_size: int, message: str) -> None:
    model = network()
    recorder = Recorder()
    with pytest.raises(Diverged, match=message + r".*: lower the learning rate"):
        stock_fit(
            model,
            AutoMeanFieldNormal(model),
            pyro.optim.SGD({"lr": 1e30}),
            classes(),
            epochs=1,
            batch_size=batch_size,
            callbacks=[recorder],
        )
    assert recorder.calls[-1] == "end"
    assert "epoch" not in recorder.calls


# -- what is refused -------------------------------------------------------------------------------------------------


def without_plate(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(FEATURES), 1.0).to_event(1))
    pyro.sample("obs", dist.Normal(x @ w, 1.0).to_event(1), obs=y)


def without_observation(x: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0))


def test_a_missing_plate_is_fine_for_full_batches_only() -> None:
    x = torch.randn(ROWS, FEATURES)
    guide = AutoMeanFieldNormal(without_plate)
    assert stock_fit(without_plate, guide, adam(), (x, x.sum(-1)), epochs=1, batch_size=ROWS).history
    with pytest.raises(ValueError, match=r"pyro.plate\('data', 24, .* batch of 7 of 24 .* batch_size=24"):
        stock_fit(without_plate, guide, adam(), (x, x.sum(-1)), epochs=1, batch_size=7)


X, Y = classes()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": ROWS + 1}, ValueError, "batch_size=25 does not fit 24 training rows: .* 1 to 24"),
        ({"batch_size": 0}, ValueError, "batch_size=0"),
        ({"batch_size": 2.0}, ValueError, "batch_size=2.0"),
        ({"epochs": 0}, ValueError, "epochs=0 .* at least 1"),
        ({"epochs": True}, ValueError, "epochs=True"),
        ({"optim": torch.optim.Adam([torch.zeros(1)])}, TypeError, "optim is a Adam; pass one of pyro_bnn.optim"),
        ({"elbo": TraceMeanField_ELBO}, TypeError, r"TraceMeanField_ELBO\(\)"),
        ({"patience": 2}, ValueError, r"patience=2 .*val=\(x, y\)"),
        ({"patience": 0, "val": (X, Y)}, ValueError, "patience=0 .* >= 1"),
        ({"data": (X[:20], Y[:20])}, ValueError, "size 24 but 20 rows .* num_data=20"),
        ({"data": (X, Y[:20])}, ValueError, "24 rows and y has 20"),
        ({"data": (X, Y + 1)}, ValueError, r"y\[\d+\]=4 is no label"),
        ({"data": (X, Y - 1)}, ValueError, r"y\[\d+\]=-1 is no label"),
        ({"data": (X, Y + 0.5)}, ValueError, r"y\[0\]=\d.5 is no label"),
        ({"val": (X, Y + 1)}, ValueError, r"val y\[\d+\]=4 is no label"),
        ({"data": (X, Y[:, None])}, ValueError, r"labels have shape \(8, 1\) for 8 rows"),
        ({"data": (torch.full_like(X, math.nan), Y)}, ValueError, "NaN"),
        ({"model": without_observation}, ValueError, "observes nothing"),
    ],
)
def test_bad_input_names_value_and_remedy(options: dict[str, Any], error: type[Exception], message: str) -> None:
    model = network()
    good: dict[str, Any] = {
        "model": model,
        "guide": AutoMeanFieldNormal(model),
        "optim": adam(),
        "data": (X, Y),
        "epochs": 1,
        "batch_size": 8,
    }
    arguments = {**good, **options}
    if "model" in options:
        arguments["guide"] = AutoMeanFieldNormal(options["model"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(error, match=message) as caught:
        stock_fit(**arguments)
    if error is ValueError:
        assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_last_batch_of_one_row_is_refused_by_batch_norm_at_the_door() -> None:
    model = network(batch_norm())
    with pytest.raises(ValueError, match=r"24 rows in batches of 23 leave a last batch of 1 row.*another batch_size"):
        stock_fit(model, AutoMeanFieldNormal(model), adam(), (X, Y), epochs=1, batch_size=23)
    plain = network()
    assert stock_fit(plain, AutoMeanFieldNormal(plain), adam(), (X, Y), epochs=1, batch_size=23).history


def test_a_guide_of_another_model_is_refused() -> None:
    model = network()
    with pytest.raises(ValueError, match="share no latent site"):
        stock_fit(model, AutoMeanFieldNormal(with_parameter), adam(), classes(), epochs=1, batch_size=8)
