"""FlatMeanField_ELBO: the numbers of TraceMeanField_ELBO, by Pyro, plainly and recorded."""

import copy
import gc
import logging
import random
import weakref
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.distributions import constraints
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import kl_divergence

from pyro_bnn.guides.mc_dropout import AutoDropout
from pyro_bnn.guides.mean_field import AutoMeanFieldNormal
from pyro_bnn.guides.point import AutoPoint
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO, _FlatPriors
from pyro_bnn.inference.graph import step as graph_step
from pyro_bnn.inference.kl import per_datum, scale_kl
from pyro_bnn.models import likelihoods, priors
from pyro_bnn.models.bnn import BNN
from pyro_bnn.models.networks.lenet5 import LeNet5

N = 40
Pair = tuple[Callable[..., Any], Callable[..., Any]]


@pytest.fixture(autouse=True)
def _double_precision(fresh_pyro: None) -> None:
    """In double precision, equal means equal to rounding."""
    torch.set_default_dtype(torch.float64)


class Net(nn.Module):
    """A convolution, a BatchNorm, dropout and two dense layers: everything that makes a step stateful."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.dropout = nn.Dropout(dropout)
        self.fc1 = nn.Linear(3 * 4 * 4, 8)
        self.fc2 = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.fc2(self.dropout(torch.tanh(self.fc1(x))))


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.Tanh(), nn.Linear(6, 4))


def bnn(net: nn.Module, prior: priors.Prior | None = None, **guide: Any) -> Pair:
    model = BNN(net, prior or priors.Kaiming(), likelihoods.Categorical(), N)
    return model, AutoMeanFieldNormal(model, **guide)


def point(net: nn.Module, kind: Callable[..., Any] = AutoPoint) -> Pair:
    model, _ = bnn(net)
    return model, kind(model)


def batches(steps: int, size: int = 10) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    dtype = torch.get_default_dtype()
    return [
        (
            torch.randn(size, 1, 6, 6, generator=generator, dtype=dtype),
            torch.randint(4, (size,), generator=generator),
        )
        for _ in range(steps)
    ]


def train(
    make: Callable[[], Pair],
    elbo: Any,
    weights: tuple[float, ...] = (1.0, 0.5, 0.0, 0.5, 2.0),
    data: list[tuple[Any, ...]] | None = None,
    between: Callable[[int, Any, Any], None] = lambda i, model, guide: None,
) -> tuple[list[float], dict[str, Tensor], Any]:
    """Take a few SVI steps from a fixed seed; return the losses and everything the steps left behind."""
    pyro.clear_param_store()
    pyro.set_rng_seed(3)
    model, guide = make()
    svi = SVI(model, guide, pyro.optim.SGD({"lr": 1e-3}), elbo)
    losses = []
    for i, batch in enumerate(data or batches(len(weights))):
        between(i, model, guide)
        with per_datum(N), scale_kl(weights[i % len(weights)]):
            losses.append(svi.step(*batch))
    left = {f"{i}": p.detach().clone() for i, (_, p) in enumerate(pyro.get_param_store().named_parameters())}
    for program in (model, guide):
        if isinstance(program, nn.Module):
            left |= {f"{type(program).__name__}.{n}": b.clone() for n, b in program.named_buffers()}
    left["noise"] = torch.rand(3)
    return losses, left, elbo


def assert_same(make: Callable[[], Pair], tolerance: float = 1e-9, elbo: Any = None, **options: Any) -> Any:
    """The same losses, parameters, buffers and random state as stock Pyro; in double precision, to rounding."""
    ours = FlatMeanField_ELBO() if elbo is None else elbo
    stock = TraceMeanField_ELBO(num_particles=ours.num_particles)
    expected, state, _ = train(make, stock, **copy.deepcopy(options))
    losses, left, _ = train(make, ours, **copy.deepcopy(options))
    assert losses == pytest.approx(expected, rel=tolerance)
    assert list(left) == list(state)
    for name, value in state.items():
        torch.testing.assert_close(left[name], value, rtol=1e-7, atol=1e-10)
    return ours


def graphs(elbo: FlatMeanField_ELBO) -> int:
    return 0 if elbo._recorded is None else len(elbo._recorded)


def by_name() -> FlatMeanField_ELBO:
    return FlatMeanField_ELBO(trace=True)


# ------------------------------------------------------------------------------------------- the number itself


def test_flat_kl_is_the_sum_over_sites() -> None:
    model, guide = bnn(Net(), priors.PerLayer({"fc*": priors.Normal(0.3, 0.7)}), init_scale=0.2)
    x, y = batches(1)[0]
    trace = poutine.trace(guide).get_trace(x, y)
    latent = poutine.trace(poutine.replay(model, trace=trace)).get_trace(x, y)
    names = [n for n in trace.nodes if n.startswith("net.")]
    expected = sum(kl_divergence(trace.nodes[n]["fn"], latent.nodes[n]["fn"]).sum() for n in names)
    _, kl = FlatMeanField_ELBO()._terms(latent, trace)
    assert kl.item() == pytest.approx(expected.item(), rel=1e-12)
    parameters = list(guide.parameters())
    ours = torch.autograd.grad(kl, parameters, retain_graph=True)
    theirs = torch.autograd.grad(expected, parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_flat_kl_vanishes_where_guide_and_prior_agree() -> None:
    model, guide = bnn(dense(), priors.Normal(0.0, 0.5), init_loc="zeros", init_scale=0.5)
    x, y = batches(1)[0]
    trace = poutine.trace(guide).get_trace(x, y)
    latent = poutine.trace(poutine.replay(model, trace=trace)).get_trace(x, y)
    _, kl = FlatMeanField_ELBO()._terms(latent, trace)
    assert abs(kl.item()) < 1e-4


def test_lenet_in_single_precision() -> None:
    torch.set_default_dtype(torch.float32)
    x, y = torch.randn(8, 1, 28, 28), torch.randint(10, (8,))

    def make() -> Pair:
        model = BNN(LeNet5(), priors.Kaiming(), likelihoods.Categorical(), N)
        return model, AutoMeanFieldNormal(model)

    expected, state, _ = train(make, TraceMeanField_ELBO(), (1.0, 0.3, 0.3), [(x, y)] * 3)
    losses, left, elbo = train(make, by_name(), (1.0, 0.3, 0.3), [(x, y)] * 3)
    assert losses == pytest.approx(expected, rel=1e-6)
    assert graphs(elbo) == 1
    for name, value in state.items():
        torch.testing.assert_close(left[name], value, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------- the same as stock Pyro


PROGRAMS = pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: bnn(dense()), id="dense"),
        pytest.param(lambda: bnn(Net()), id="batch-norm"),
        pytest.param(lambda: bnn(Net(dropout=0.5)), id="dropout"),
        pytest.param(lambda: bnn(dense(), priors.Laplace(0.5)), id="laplace-prior"),
        pytest.param(lambda: bnn(dense(), priors.ScaleMixture()), id="mixture-prior"),
        pytest.param(lambda: bnn(dense(), priors.PerLayer({"1.*": priors.Laplace(0.5)})), id="two-kinds-of-priors"),
        pytest.param(lambda: bnn(dense(), priors.Normal(0.0, 1.0)), id="standard-normal"),
        pytest.param(lambda: bnn(Net(), groups="site"), id="a-group-per-site"),
        pytest.param(lambda: bnn(Net(), groups={"conv": "net.conv.*", "rest": "net.fc*"}), id="two-groups"),
        pytest.param(lambda: bnn(dense(), freeze=("loc",)), id="frozen-loc"),
        pytest.param(lambda: bnn(dense(), freeze=("scale",)), id="frozen-scale"),
        pytest.param(lambda: bnn(dense(), max_scale=0.1), id="capped"),
        pytest.param(lambda: point(dense()), id="point"),
        pytest.param(lambda: point(dense(), AutoDropout), id="mc-dropout"),
    ],
)


@PROGRAMS
@pytest.mark.parametrize("trace", [None, True, False])
def test_same_as_stock(make: Callable[[], Pair], trace: bool | None) -> None:
    elbo = assert_same(make, elbo=FlatMeanField_ELBO(trace=trace))
    assert graphs(elbo) == (trace is True)


@PROGRAMS
def test_graph_is_the_program_bit_for_bit(make: Callable[[], Pair]) -> None:
    torch.set_default_dtype(torch.float32)
    losses, left, _ = train(make, FlatMeanField_ELBO(trace=False))
    from_graph, left_by_graph, elbo = train(make, by_name())
    assert graphs(elbo) == 1
    assert from_graph == losses
    assert all(torch.equal(value, left_by_graph[name]) for name, value in left.items())


@pytest.mark.parametrize("inplace", [True, False])
def test_same_as_stock_with_inplace_layers(inplace: bool) -> None:
    def make() -> Pair:
        net = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(inplace),
            nn.MaxPool2d(2),
            nn.Dropout(0.3, inplace),
            nn.Flatten(),
            nn.Linear(27, 4),
        )
        return bnn(net)

    assert graphs(assert_same(make, elbo=by_name())) == 1


def test_same_as_stock_with_an_autonormal_guide() -> None:
    def make() -> Pair:
        model, _ = bnn(Net())
        return model, AutoNormal(model)

    assert graphs(assert_same(make, elbo=by_name())) == 1


def test_same_as_stock_with_several_particles() -> None:
    assert graphs(assert_same(lambda: bnn(Net()), elbo=FlatMeanField_ELBO(num_particles=3, trace=True))) == 1


def hierarchical(x: Tensor, y: Tensor | None = None) -> None:
    spread = pyro.sample("spread", dist.LogNormal(0.0, 0.5))
    loc = pyro.param("loc", torch.tensor(0.1))
    noise = pyro.param("noise", torch.tensor(0.5), constraint=constraints.positive)
    with pyro.plate("features", 3):
        w = pyro.sample("w", dist.Normal(loc, spread))
    b = pyro.sample("b", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", N, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Normal(x @ w + b.sum(), noise), obs=y)


def test_same_as_stock_for_a_program_written_by_hand() -> None:
    data = [(torch.randn(10, 3), torch.randn(10)) for _ in range(5)]
    assert_same(lambda: (hierarchical, AutoMeanFieldNormal(hierarchical)), data=data)
    elbo = assert_same(lambda: (hierarchical, AutoMeanFieldNormal(hierarchical)), elbo=by_name(), data=data)
    assert graphs(elbo) == 1


def test_same_as_stock_with_scales_and_masks_of_the_program() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        with poutine.scale(scale=0.3):
            a = pyro.sample("a", dist.Normal(torch.zeros(3), 2.0).to_event(1))
        with poutine.mask(mask=torch.tensor(False)):
            c = pyro.sample("c", dist.Normal(0.0, 2.0))
        b = pyro.sample("b", dist.Normal(torch.zeros(3), 2.0).to_event(1))
        pyro.factor("pull", -(b**2).sum())
        with pyro.plate("data", N, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal(x @ (a + b) + c, 1.0), obs=y)

    def guide(x: Tensor, y: Tensor | None = None) -> None:
        def draw(name: str, size: int, mask: bool | Tensor = True, scale: float = 1.0) -> None:
            loc = pyro.param(f"{name}_loc", torch.full((size,), 0.2))
            rho = pyro.param(f"{name}_scale", torch.full((size,), 0.1), constraint=constraints.positive)
            with poutine.scale(scale=scale), poutine.mask(mask=mask):
                fn = dist.Normal(loc, rho).to_event(1) if name != "c" else dist.Normal(loc[0], rho[0])
                pyro.sample(name, fn)

        draw("a", 3, scale=0.3)
        draw("c", 1, mask=torch.tensor(False))
        draw("b", 3)

    data = [(torch.randn(10, 3), torch.randn(10)) for _ in range(5)]
    assert graphs(assert_same(lambda: (model, guide), elbo=by_name(), data=data)) == 1


@pytest.fixture
def _module_local() -> Any:
    pyro.settings.set(module_local_params=True)
    yield
    pyro.settings.set(module_local_params=False)


@pytest.mark.usefixtures("_module_local")
@pytest.mark.parametrize("make", [lambda: bnn(Net()), lambda: bnn(dense(), groups="site")])
def test_same_as_stock_with_module_local_params(make: Callable[[], Pair]) -> None:
    assert graphs(assert_same(make, elbo=by_name())) == 1


@pytest.mark.usefixtures("_module_local")
def test_as_a_torch_module() -> None:
    """The way of examples/svi_torch.py: a loss to call backward on, and a torch optimizer."""
    results = []
    for make_elbo in (TraceMeanField_ELBO, FlatMeanField_ELBO):
        pyro.set_rng_seed(0)
        model, guide = bnn(Net())
        elbo = make_elbo()
        loss_fn = elbo(model, guide)
        optim = torch.optim.Adam(loss_fn.parameters(), lr=1e-2)
        losses = []
        for x, y in batches(4):
            optim.zero_grad()
            loss = 2 * loss_fn(x, y)
            loss.backward()
            losses.append(loss.item())
            optim.step()
        results.append((losses, [p.detach().clone() for p in guide.parameters()]))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-9)
    for a, b in zip(*(r[1] for r in results), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_step_tensors() -> None:
    model, guide = bnn(Net())
    for trace in (True, False):
        elbo = FlatMeanField_ELBO(trace=trace)
        for i, (x, y) in enumerate(batches(4)):
            pyro.set_rng_seed(i)
            with per_datum(N), scale_kl(0.5):
                expected = TraceMeanField_ELBO().loss(model, guide, x, y)
            pyro.set_rng_seed(i)
            with scale_kl(0.0):
                nll = TraceMeanField_ELBO().loss(model, guide, x, y) / N
            pyro.set_rng_seed(i)
            with per_datum(N), scale_kl(0.5):
                result = elbo.step_tensors(model, guide, x, y)
            assert result["loss"].item() == pytest.approx(expected, rel=1e-9)
            assert result["nll"].item() == pytest.approx(nll, rel=1e-9)
            assert result["loss"].shape == result["nll"].shape == ()
            trained = {id(p) for p in (*guide.parameters(), *model.deterministic.parameters())}
            assert {id(p) for p in result["params"]} == trained
            assert all(p.grad is not None for p in result["params"])
            assert not result["loss"].requires_grad
            for p in result["params"]:
                p.grad = None


def test_gradients_add_up() -> None:
    model, guide = bnn(dense())
    elbo = FlatMeanField_ELBO()
    x, y = batches(1)[0]
    seen = []
    for _ in range(4):
        pyro.set_rng_seed(0)
        elbo.loss_and_grads(model, guide, x, y)
        seen.append(guide.loc_unconstrained.grad.clone())
    for k, grad in enumerate(seen):
        torch.testing.assert_close(grad, (k + 1) * seen[0])


# ------------------------------------------------------------------------------- what changes between two steps


def test_short_batch_is_a_second_graph() -> None:
    data = [*batches(2), *batches(1, size=4), *batches(2), *batches(1, size=4)]
    assert graphs(assert_same(lambda: bnn(Net()), elbo=by_name(), data=data)) == 2


def test_train_and_eval() -> None:
    def between(i: int, model: Any, guide: Any) -> None:
        model.train(i % 4 < 2)

    assert graphs(assert_same(lambda: bnn(Net(0.5)), elbo=by_name(), data=batches(8), between=between)) == 2


def test_one_layer_in_eval() -> None:
    def between(i: int, model: Any, guide: Any) -> None:
        if i == 2:
            model.template.norm.eval()

    assert_same(lambda: bnn(Net()), between=between)


def test_freezing_on_the_way() -> None:
    def between(i: int, model: Any, guide: Any) -> None:
        if i == 2:
            guide.freeze("scale")
        if i == 4:
            guide.unfreeze("scale")

    for elbo in (None, by_name()):
        assert_same(lambda: bnn(dense()), between=between, elbo=elbo, data=batches(6))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.template.dropout, "p", 0.9),
        lambda model: setattr(model.template.norm, "momentum", 0.9),
        lambda model: setattr(model, "likelihood", likelihoods.Categorical(link="sigmoid")),
        lambda model: setattr(model, "num_data", 20),
        lambda model: setattr(model.template, "fc2", nn.Linear(8, 4, bias=False)),
    ],
)
def test_plain_values(change: Callable[[Any], None]) -> None:
    def between(i: int, model: Any, guide: Any) -> None:
        if i == 2 and not hasattr(between, "bias"):
            torch.manual_seed(1)
            try:
                change(model)
            except Exception:
                pytest.fail("the change itself does not work")

    def make() -> Pair:
        net = Net(0.1)
        net.fc2 = nn.Linear(8, 4, bias=False)
        return bnn(net)

    assert_same(make, between=between)


def test_globals_and_closures() -> None:
    scale = 1.0

    class Settings:
        power = 2

    settings = Settings()

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), scale).to_event(1))
        with pyro.plate("data", N, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal(x @ w**settings.power * FACTOR["value"], 1.0), obs=y)

    def between(i: int, *_: Any) -> None:
        nonlocal scale
        FACTOR["value"] = 3.0 if i >= 2 else 1.0
        scale = 2.0 if i >= 4 else 1.0
        settings.power = 3 if i >= 6 else 2

    data = [(torch.randn(10, 3), torch.randn(10)) for _ in range(8)]
    assert_same(lambda: (model, AutoMeanFieldNormal(model)), data=data, between=between)


FACTOR = {"value": 1.0}


class Experiment:
    """A program that is a method, beside state that it reads, by whatever way, and state that it does not."""

    def __init__(self) -> None:
        self.power = 2
        self.shift = 0.0
        self.steps = 0
        self.log: list[int] = []

    @property
    def offset(self) -> float:
        return self.shift

    def features(self, x: Tensor) -> Tensor:
        return x**self.power

    def model(self, x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", N, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal(self.features(x) @ w + self.offset, 1.0), obs=y)


def test_methods() -> None:
    experiments: list[Experiment] = []

    def make() -> Pair:
        experiments.append(Experiment())
        return experiments[-1].model, AutoMeanFieldNormal(experiments[-1].model)

    def between(i: int, *_: Any) -> None:
        experiments[-1].steps += 1
        experiments[-1].log.append(i)
        experiments[-1].power = 3 if i >= 3 else 2
        experiments[-1].shift = 1.0 if i >= 6 else 0.0

    data = [(torch.randn(10, 3), torch.randn(10)) for _ in range(9)]
    assert_same(make, data=data, between=between)


def test_a_tensor_of_the_program_that_is_written_to() -> None:
    temperature = torch.tensor(1.0)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0 * temperature).to_event(1))
        with pyro.plate("data", N, subsample=torch.arange(len(x))):
            pyro.sample("obs", dist.Normal(x @ w * temperature, 1.0), obs=y)

    def between(i: int, *_: Any) -> None:
        temperature.fill_(1.0 + (i // 2))

    data = [(torch.randn(10, 3), torch.randn(10)) for _ in range(8)]
    assert_same(lambda: (model, AutoMeanFieldNormal(model)), data=data, between=between)


def test_a_batch_that_the_program_also_holds() -> None:
    held = torch.randn(10, 3)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.sample("obs", dist.Normal(x @ w + held.mean(), 1.0).to_event(1), obs=y)

    data = [(held, torch.randn(10)), *((torch.randn(10, 3), torch.randn(10)) for _ in range(4))]
    assert graphs(assert_same(lambda: (model, AutoMeanFieldNormal(model)), elbo=by_name(), data=data)) == 1


def test_state_of_the_param_store() -> None:
    """After set_state the tensors in the modules are no longer the store's; the graph must not go on with them."""
    model, guide = bnn(dense())
    svi = SVI(model, guide, pyro.optim.SGD({"lr": 1e-2}), FlatMeanField_ELBO())
    data = batches(6)
    for x, y in data[:3]:
        svi.step(x, y)
    saved = copy.deepcopy(pyro.get_param_store().get_state())
    pyro.set_rng_seed(0)
    first = [svi.step(x, y) for x, y in data[3:]]
    pyro.get_param_store().set_state(saved)
    svi.optim = pyro.optim.SGD({"lr": 1e-2})
    pyro.set_rng_seed(0)
    assert [svi.step(x, y) for x, y in data[3:]] == first


def test_interrupted_steps_end_in_the_same_bits() -> None:
    """A fresh ELBO records again in the middle: what it returns meanwhile is what the recording computes."""
    results = []
    for interrupted in (False, True):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model, guide = bnn(Net())
        elbo = by_name()
        losses = []
        for i, (x, y) in enumerate(batches(6)):
            if interrupted and i == 3:
                elbo = by_name()
            result = elbo.step_tensors(model, guide, x, y)
            losses.append(result["loss"].item())
            with torch.no_grad():
                for p in result["params"]:
                    p -= 1e-3 * p.grad
                    p.grad = None
        results.append((losses, [p.detach().clone() for p in guide.parameters()]))
    assert results[0][0] == results[1][0]
    assert all(map(torch.equal, results[0][1], results[1][1]))


def test_kl_weight_does_not_capture_again_but_its_presence_does() -> None:
    model, guide = bnn(dense())
    elbo = by_name()
    x, y = batches(1)[0]
    for w in (1.0, 0.0, 0.25, 3.0, torch.tensor(0.5)):
        with scale_kl(w):
            elbo.loss_and_grads(model, guide, x, y)
    assert graphs(elbo) == 1
    elbo.loss_and_grads(model, guide, x, y)
    assert graphs(elbo) == 2
    with scale_kl(0.5), scale_kl(0.5):
        pyro.set_rng_seed(0)
        twice = elbo.loss_and_grads(model, guide, x, y)
    assert graphs(elbo) == 3
    with scale_kl(0.25):
        pyro.set_rng_seed(0)
        assert elbo.loss_and_grads(model, guide, x, y) == pytest.approx(twice, rel=1e-6)


# ------------------------------------------------------------------------------------------- when it must not


@pytest.fixture(autouse=True)
def _says_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_step, "_SAID", set())


def eager(make: Callable[[], Pair], caplog: pytest.LogCaptureFixture, says: str, **options: Any) -> None:
    """Asked for by name, refused, and said once; right in any case."""
    caplog.set_level(logging.WARNING, "pyro_bnn")
    elbo = assert_same(make, elbo=by_name(), **options)
    assert graphs(elbo) == 0
    messages = [r.getMessage() for r in caplog.records if r.name == "pyro_bnn"]
    assert len(messages) == 1
    assert "eagerly" in messages[0]
    assert says in messages[0]


class Custom(nn.Module):
    """A dense layer, then whatever the test wants."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.fc = nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.fc(x.flatten(1)))


def branch(h: Tensor) -> Tensor:
    return h if h.sum() > 0 else 2 * h


def branch_on_a_list(h: Tensor) -> Tensor:
    return h * (1.0 + abs(h.detach().flatten().tolist()[0]))


def branch_in_numpy(h: Tensor) -> Tensor:
    return h * float(abs(h.detach().numpy()).max())


def python_noise(h: Tensor) -> Tensor:
    return h * (1 + random.random())


def select(h: Tensor) -> Tensor:
    return h + h[h > 0].mean()


class Clock:
    """A source of change that hides in a slot."""

    __slots__ = ("ticks",)

    def __init__(self) -> None:
        self.ticks = 0

    def tick(self) -> int:
        self.ticks += 1
        return self.ticks


CLOCK = Clock()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (branch, "value is taken out"),
        (branch_on_a_list, "tolist"),
        (branch_in_numpy, "numpy"),
        (select, "shape"),
    ],
)
def test_control_flow_that_depends_on_data(
    function: Callable[[Tensor], Tensor], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    eager(lambda: bnn(Custom(function)), caplog, says)


@pytest.mark.parametrize("function", [python_noise, lambda h: h * CLOCK.tick()])
def test_what_python_changes_is_right_by_default(function: Callable[[Tensor], Tensor]) -> None:
    def make() -> Pair:
        random.seed(0)
        CLOCK.ticks = 0
        return bnn(Custom(function))

    assert_same(make)


def test_a_recording_by_name_that_is_not_the_program_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    """The promise of `trace=True` was broken: the next step that is compared says so, and the program goes on."""
    CLOCK.ticks = 0
    model, guide = bnn(Custom(lambda h: h * CLOCK.tick()))
    elbo = by_name()
    for x, y in batches(4):
        elbo.loss_and_grads(model, guide, x, y)
    assert graphs(elbo) == 0
    assert "does not reproduce" in caplog.text


class Rebinding(nn.Module):
    """Puts another tensor in the place of its buffer at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(36, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.fc(x.flatten(1)) * self.calls


def test_buffers_that_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    assert_same(lambda: bnn(Rebinding()))
    with pytest.raises(AssertionError):  # by name it breaks the promise, and the warning says so
        assert_same(lambda: bnn(Rebinding()), elbo=by_name())
    assert "does not reproduce" in caplog.text


def test_what_only_other_data_reveals(caplog: pytest.LogCaptureFixture) -> None:
    """A value smuggled past every watch is found on the second batch, before it does harm."""

    def smuggle(h: Tensor) -> Tensor:
        untracked = torch.frombuffer(bytearray(bytes(h.detach().contiguous().untyped_storage())), dtype=h.dtype)
        return h * (1 + untracked.abs().max())

    eager(lambda: bnn(Custom(smuggle)), caplog, "")


def test_handlers_run_by_pyro() -> None:
    model, guide = bnn(dense())
    elbo = by_name()
    x, y = batches(1)[0]
    with poutine.scale(scale=0.5):
        pyro.set_rng_seed(0)
        half = elbo.loss_and_grads(model, guide, x, y)
    assert graphs(elbo) == 0
    pyro.set_rng_seed(0)
    assert half == pytest.approx(0.5 * elbo.loss_and_grads(model, guide, x, y), rel=1e-5)
    assert graphs(elbo) == 1


def test_hooks_are_called() -> None:
    model, guide = bnn(Net())
    elbo = FlatMeanField_ELBO()
    seen: list[str] = []
    model.template.fc1.register_forward_hook(lambda *_: seen.append("layer"))
    model.register_forward_hook(lambda *_: seen.append("model"))
    guide.register_forward_hook(lambda *_: seen.append("guide"))
    guide.loc_unconstrained.register_post_accumulate_grad_hook(lambda _: seen.append("gradient"))
    elbo.loss_and_grads(model, guide, *batches(1)[0])
    assert seen == ["guide", "layer", "model", "gradient"]


def test_hooks_on_parameters_are_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    model, guide = bnn(dense())
    elbo = by_name()
    x, y = batches(1)[0]
    seen: list[int] = []
    guide.loc_unconstrained.register_post_accumulate_grad_hook(lambda _: seen.append(1))
    for _ in range(4):
        elbo.loss_and_grads(model, guide, x, y)
    assert graphs(elbo) == 0
    assert "hooks" in caplog.text
    assert len(seen) == 4


def test_errors_come_through() -> None:
    model, guide = bnn(dense())
    elbo = FlatMeanField_ELBO()
    x, y = batches(1)[0]
    with pytest.raises(ValueError, match=r"support|constraint"):
        elbo.loss_and_grads(model, guide, x, y + 10)
    assert elbo.loss_and_grads(model, guide, x, y) > 0
    with pytest.raises(ValueError, match="num_particles=0"):
        FlatMeanField_ELBO(num_particles=0)


def test_vectorized_particles_run_eagerly() -> None:
    class Plain(PyroModule):
        def forward(self, x: Tensor, y: Tensor | None = None) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            with pyro.plate("data", N, subsample=torch.arange(len(x)), dim=-1):
                pyro.sample("obs", dist.Normal((w.unsqueeze(-2) * x).sum(-1), 1.0), obs=y)

    model = Plain()
    guide = AutoMeanFieldNormal(model)
    x, y = torch.randn(10, 3), torch.randn(10)
    guide(x, y)
    losses = []
    for elbo in (TraceMeanField_ELBO, FlatMeanField_ELBO):
        ours = elbo(num_particles=4, vectorize_particles=True, max_plate_nesting=1)
        pyro.set_rng_seed(0)
        losses.append(ours.loss_and_grads(model, guide, x, y))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert graphs(ours) == 0


# ------------------------------------------------------------------------------------------- living together


def test_noise_is_fresh_at_each_step_and_follows_the_seed() -> None:
    model, guide = bnn(Net(dropout=0.5))
    elbo = FlatMeanField_ELBO()
    x, y = batches(1)[0]
    losses = [elbo.loss_and_grads(model, guide, x, y) for _ in range(6)]
    assert len(set(losses)) == 6
    repeated = []
    for _ in range(2):
        pyro.set_rng_seed(11)
        repeated.append([elbo.loss(model, guide, x, y), *(elbo.loss_and_grads(model, guide, x, y) for _ in range(2))])
    assert repeated[0][1:] == repeated[1][1:]


def test_two_models_and_two_elbos() -> None:
    data = batches(4)
    alone = []
    for _ in range(2):
        pyro.set_rng_seed(0)
        model, guide = bnn(Net())
        alone.append([FlatMeanField_ELBO(trace=False).loss_and_grads(model, guide, *batch) for batch in data])
    assert alone[0] == alone[1]
    pyro.set_rng_seed(0)
    first = bnn(Net())
    pyro.set_rng_seed(0)
    second = bnn(Net())
    state = torch.get_rng_state()
    shared, other = by_name(), by_name()
    together: dict[str, list[float]] = {"first": [], "second": [], "other": []}
    states = dict.fromkeys(together, state)
    for batch in data:
        for name, elbo, pair in (("first", shared, first), ("second", shared, second)):
            torch.set_rng_state(states[name])
            together[name].append(elbo.loss_and_grads(*pair, *batch))
            states[name] = torch.get_rng_state()
    assert together["first"] == pytest.approx(alone[0], rel=1e-9)
    assert together["second"] == pytest.approx(alone[0], rel=1e-9)
    assert graphs(shared) == 2
    assert other.loss_and_grads(*first, *data[0]) > 0
    assert graphs(other) == 1


def test_graphs_leave_with_their_elbo() -> None:
    model, guide = bnn(dense())
    elbo = by_name()
    x, y = batches(1)[0]
    for _ in range(3):
        elbo.loss_and_grads(model, guide, x, y)
    (kept,) = elbo._recorded._recorded.values()
    graph = weakref.ref(kept.lowered)
    batch = weakref.ref(x)
    del kept, x
    gc.collect()
    assert batch() is None
    assert graph() is not None
    del elbo
    gc.collect()
    assert graph() is None


def test_memory_does_not_grow() -> None:
    model, guide = bnn(Net())
    elbo = by_name()
    counts = []
    for x, y in batches(12):
        elbo.step_tensors(model, guide, x, y)
        for p in guide.parameters():
            p.grad = None
        gc.collect()
        counts.append(sum(issubclass(type(o), Tensor) for o in gc.get_objects()))
    assert counts[-1] == counts[4]


def test_copies_start_without_graphs() -> None:
    model, guide = bnn(dense())
    elbo = by_name()
    elbo.loss_and_grads(model, guide, *batches(1)[0])
    assert graphs(copy.deepcopy(elbo)) == 0


def test_trains_like_any_other_elbo() -> None:
    """Score-function estimates of Pyro's own ELBO and ours agree on the gradient's mean: a smoke test of the sign."""
    model, guide = bnn(dense(), init_scale=1e-4)
    x, y = batches(1)[0]
    ours, theirs = FlatMeanField_ELBO(), Trace_ELBO()
    grads = []
    for elbo in (ours, theirs):
        guide.zero_grad()
        elbo.loss_and_grads(model, guide, x, y)
        grads.append(guide.loc_unconstrained.grad.clone())
    assert torch.nn.functional.cosine_similarity(*grads, dim=0) > 0.5


def test_parameters_of_plain_modules_get_gradients() -> None:
    """As loss.backward does in stock Pyro, whether or not Pyro knows about them."""
    outside = nn.Linear(3, 3)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.sample("obs", dist.Normal(outside(x) @ w, 1.0).to_event(1), obs=y)

    guide = AutoMeanFieldNormal(model)
    x, y = torch.randn(5, 3), torch.randn(5)
    grads = []
    for elbo in (TraceMeanField_ELBO(), FlatMeanField_ELBO()):
        for i in range(3):
            outside.zero_grad()
            pyro.set_rng_seed(i)
            elbo.loss_and_grads(model, guide, x, y)
        grads.append(outside.weight.grad.clone())
    torch.testing.assert_close(*grads)


def test_constrained_parameters_reach_the_optimizer() -> None:
    """SVI.step finds every parameter of a step that ran as a graph, by name and with its unconstrained tensor."""
    data = [(torch.randn(10, 3), torch.randn(10)) for _ in range(4)]
    guide = AutoMeanFieldNormal(hierarchical)
    elbo = by_name()
    found = []
    for x, y in data:
        with poutine.trace(param_only=True) as capture:
            elbo.loss_and_grads(hierarchical, guide, x, y)
        found.append({n: id(s["value"].unconstrained()) for n, s in capture.trace.nodes.items()})
        noise = capture.trace.nodes["noise"]["value"]
        assert noise.item() == pytest.approx(pyro.param("noise").item())
    assert graphs(elbo) == 1
    assert found[0] == found[1] == found[2] == found[3]
    assert len(found[0]) == 4


def test_a_module_with_its_own_parameters() -> None:
    class Own(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(()))
            self.noise = PyroParam(torch.tensor(0.7), constraints.positive)

        def forward(self, x: Tensor, y: Tensor | None = None) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            with pyro.plate("data", N, subsample=torch.arange(len(x))):
                pyro.sample("obs", dist.Normal(x @ w + self.shift, self.noise), obs=y)

    def make() -> Pair:
        model = Own()
        return model, AutoMeanFieldNormal(model)

    data = [(torch.randn(10, 3), torch.randn(10)) for _ in range(5)]
    assert graphs(assert_same(make, elbo=by_name(), data=data)) == 1


# ----------------------------------------------------------------------------------------------- the plain step


def plain(model: Any, guide: Any, *args: Any) -> bool:
    return FlatMeanField_ELBO()._plain_terms(model, guide, args, {}) is not None


def test_a_bnn_with_a_flat_guide_runs_plainly() -> None:
    x, y = batches(1)[0]
    assert plain(*bnn(Net()), x, y)
    assert plain(*bnn(Net(), groups="site"), x, y)
    with per_datum(N), scale_kl(0.5), poutine.trace(param_only=True):
        assert plain(*bnn(Net()), x, y)


@pytest.mark.parametrize(
    "change",
    [
        lambda model, guide: setattr(model, "forward", lambda *_: None),
        lambda model, guide: setattr(guide, "scale_of", torch.exp),
        lambda model, guide: model.register_forward_pre_hook(lambda *_: None),
        lambda model, guide: guide.register_forward_hook(lambda *_: None),
    ],
)
def test_what_was_changed_runs_by_pyro(change: Callable[[Any, Any], None]) -> None:
    model, guide = bnn(Net())
    change(model, guide)
    assert not plain(model, guide, *batches(1)[0])


def test_a_method_replaced_on_the_class_runs_by_pyro(monkeypatch: pytest.MonkeyPatch) -> None:
    model, guide = bnn(Net())
    original = BNN.sample_weights
    monkeypatch.setattr(BNN, "sample_weights", lambda self: original(self))
    assert not plain(model, guide, *batches(1)[0])


def test_other_handlers_weights_of_rows_and_other_priors_run_by_pyro() -> None:
    x, y = batches(1)[0]
    model, guide = bnn(Net())
    with poutine.scale(scale=0.5):
        assert not plain(model, guide, x, y)
    with poutine.trace():
        assert not plain(model, guide, x, y)
    assert not plain(model, guide, x, y, torch.ones(len(x)))
    assert not plain(*bnn(Net(), priors.Laplace(0.5)), x, y)
    assert not plain(*point(Net()), x, y)


def test_another_prior_counts_from_the_next_step_on() -> None:
    model, guide = bnn(dense())
    elbo = FlatMeanField_ELBO()
    x, y = batches(1)[0]
    for prior in (priors.Normal(0.0, 2.0), priors.Kaiming(), priors.Normal(0.3, 0.1)):
        model.prior = prior
        pyro.set_rng_seed(0)
        ours = elbo.loss_and_grads(model, guide, x, y)
        pyro.set_rng_seed(0)
        assert ours == pytest.approx(TraceMeanField_ELBO().loss(model, guide, x, y), rel=1e-9)


def test_a_prior_that_only_looks_like_one_number_is_all_of_its_numbers() -> None:
    """A 0-dimensional tensor may be the base of a view of more memory than its own."""
    numbers = torch.arange(1.0, 7.0)
    first = torch.empty(()).set_(numbers.untyped_storage(), 0, (), ())
    scale = first.as_strided((2, 3), (3, 1))
    assert scale._base is first
    prior = [dist.Normal(torch.zeros(()).expand(2, 3), scale)]
    flat_priors = _FlatPriors()
    torch.testing.assert_close(flat_priors(prior).inv_scale, numbers.reciprocal())
    numbers[3] = 9.0
    torch.testing.assert_close(flat_priors(prior).inv_scale, numbers.reciprocal())


def test_a_guide_of_another_model_is_refused() -> None:
    x, y = batches(1)[0]
    model, _ = bnn(nn.Sequential(nn.Flatten(), nn.Linear(36, 4)))
    wider, guide = bnn(nn.Sequential(nn.Flatten(), nn.Linear(36, 5)))
    assert plain(wider, guide, x, y)
    with pytest.raises(ValueError, match=r"'net.1.weight' in shape \(5, 36\).*\(4, 36\): build the guide"):
        FlatMeanField_ELBO().loss_and_grads(model, guide, x, y)


@pytest.mark.filterwarnings("ignore:Found")
def test_sites_that_guide_and_model_do_not_share_are_named() -> None:
    x, y = batches(1)[0]
    net = dense()
    both, all_of_them = bnn(net)
    part = BNN(net, priors.Kaiming(), likelihoods.Categorical(), N, random="1.*")
    with pytest.raises(ValueError, match=r"does not draw the model's site 'net\.3\.weight'"):
        FlatMeanField_ELBO().loss_and_grads(both, AutoMeanFieldNormal(part), x, y)
    with pytest.raises(ValueError, match=r"draws 'net\.3\.weight', which is no site of the model"):
        FlatMeanField_ELBO().loss_and_grads(part, all_of_them, x, y)


def test_what_is_not_reparameterised_is_refused() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        z = pyro.sample("z", dist.Bernoulli(0.5))
        pyro.sample("obs", dist.Normal(z, 1.0).expand([len(x)]).to_event(1), obs=y)

    def guide(x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("z", dist.Bernoulli(pyro.param("p", torch.tensor(0.3), constraint=constraints.unit_interval)))

    for validate in (True, False):
        with (
            pyro.validation_enabled(validate),
            pytest.raises(NotImplementedError, match=r"'z'.*TraceScoreFunction_ELBO"),
        ):
            FlatMeanField_ELBO().loss_and_grads(model, guide, torch.zeros(3), torch.zeros(3))


def test_labels_are_checked_at_every_step_that_pyro_checks() -> None:
    """Stock SVI validates as long as Pyro's switch is on; a wrong label of a later batch is no number either."""
    model = BNN(nn.Linear(3, 1), priors.Normal(), likelihoods.Bernoulli(), N)
    guide = AutoMeanFieldNormal(model)
    elbo = FlatMeanField_ELBO()
    x, y = torch.randn(5, 3), torch.ones(5)
    with pyro.validation_enabled(True):
        elbo.loss_and_grads(model, guide, x, y)
        with pytest.raises(ValueError, match="support"):
            elbo.loss_and_grads(model, guide, x, 2 * y)
