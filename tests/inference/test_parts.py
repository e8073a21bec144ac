"""Accumulated batches are one batch so many times as large; bfloat16 is near float32; nothing depends on the device."""

import math
from contextlib import nullcontext
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pyro_bnn.guides import AutoLowRankNormal, AutoMeanFieldNormal
from pyro_bnn.inference import FlatMeanField_ELBO, fit, kl, local_reparameterization
from pyro_bnn.inference.fit_state import FitState
from pyro_bnn.inference.flat_elbo import _FlatKL
from pyro_bnn.inference.svi import Callback
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import SGD, AdaBayes, Adam, Cosine, PerSite

N = 46


def rows(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(N, 1, 6, 6, generator=generator).to(dtype)
    return x, (x.flatten(1).sum(1) > 0).long()


def program(dtype: torch.dtype = torch.float64) -> tuple[BNN, AutoMeanFieldNormal]:
    pyro.set_rng_seed(3)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).to(dtype)
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), num_data=N)
    return model, AutoMeanFieldNormal(model, init_scale=0.05)


def trained(dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Tensor, list[dict[str, Any]]]:
    model, guide = program(dtype)
    optim = options.pop("optim", None) or PerSite(loc=Adam({"lr": 1e-2}), scale=Adam({"lr": 1e-2}), schedule=Cosine())
    given = {"epochs": 3, "seed": 0, "progress": False, **options}
    history = fit(model, guide, optim, rows(dtype), **given).history
    return torch.cat([guide.loc_unconstrained.detach(), guide.rho_unconstrained.detach()]), history


# -- accumulation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [kl.uniform(), kl.geometric(1.5) * kl.annealed("linear", epochs=2)])
@pytest.mark.parametrize(("size", "times"), [(6, 2), (4, 3), (1, 12)])
def test_accumulated_batches_with_shared_noise_are_one_large_batch(size: int, times: int, weight: kl.KLWeight) -> None:
    """Of 46 rows in steps of 12 the last has 10, of which a part has fewer rows or none; in float64, to rounding."""
    large, lines = trained(batch_size=12, kl=weight)
    small, others = trained(batch_size=size, accumulate=times, noise="shared", kl=weight)
    assert float((large - small).abs().max()) < 1e-10
    for mine, theirs in zip(lines, others, strict=True):
        assert mine["step"] == theirs["step"]
        assert mine["learning_rates"] == theirs["learning_rates"]
        for name in ("nll", "loss", "kl", "kl_weight"):
            assert math.isclose(mine[name], theirs[name], rel_tol=1e-9), name


def test_parts_have_noise_of_their_own_by_default() -> None:
    large, _ = trained(batch_size=12)
    small, _ = trained(batch_size=6, accumulate=2)
    again, _ = trained(batch_size=6, accumulate=2)
    assert float((large - small).abs().max()) > 1e-4
    assert torch.equal(small, again)


class Keep(Callback):
    """Keep all parameters after every step."""

    def __init__(self) -> None:
        self.steps: list[Tensor] = []

    def step(self, state: FitState) -> None:
        self.steps.append(torch.cat([p.detach().reshape(-1) for _, p in sorted(state.parameters.items())]))


def gradients(count: int, **options: Any) -> Tensor:
    """The gradient of the whole set at one place, (count, P): the steps are so small that nothing moves."""
    model, guide = program()
    keep, rate = Keep(), 1e-9
    before = torch.cat([guide.loc_unconstrained.detach(), guide.rho_unconstrained.detach()])
    fit(model, guide, SGD({"lr": rate}), rows(), epochs=count, seed=1, callbacks=[keep], progress=False, **options)
    path = torch.stack([before, *keep.steps])
    return (path[:-1] - path[1:]) / rate


def test_parts_with_noise_of_their_own_have_the_expected_gradient_of_the_whole() -> None:
    """Means over 200 gradients at 5 standard errors: of 340 elements one is outside with probability 2e-4 under it."""
    one, parts = gradients(200, batch_size=N), gradients(200, batch_size=N // 2, accumulate=2)
    error = (one.var(0) / len(one) + parts.var(0) / len(parts)).sqrt().clamp(min=1e-12)
    assert float(((one - parts).mean(0) / error).abs().max()) < 5
    assert float((one.mean(0) / 2 / error).abs().max()) > 10  # what half of it would be


def test_an_optimizer_that_knows_its_batch_is_told_the_whole_one() -> None:
    from pyro_bnn.assemble import assemble
    from pyro_bnn.methods.base import steps_per_epoch
    from pyro_bnn.recipe import Recipe

    recipe = Recipe.build(
        {
            "model": "mlp",
            "data": "toy-cubic",
            "likelihood": "learned_gaussian",
            "batch_size": 4,
            "accumulate": 3,
            "val_fraction": 0,
            "optim": {"loc": {"name": "adabayes", "lr": 1e-3}},
        }
    )
    parts = assemble(recipe)
    group = parts.optimizer(parts.guide).groups["loc"]
    assert isinstance(group, AdaBayes)
    assert group.pt_optim_args["batch_size"] == 12  # type: ignore[index]
    assert steps_per_epoch(parts) == -(-len(parts.data.train) // 12)
    with pytest.raises(ValueError, match="accumulate=100 is more than"):
        assemble(recipe.changed({"accumulate": 100}))
    with pytest.raises(ValueError, match="accumulate=3 is for methods that train by SVI"):
        assemble(recipe.changed({"method": {"name": "sgld", "lr": 1e-4}}))


def test_what_is_resumed_goes_on_to_the_same_bits() -> None:
    class Half(Callback):
        kept: Any = None

        def epoch(self, state: FitState) -> None:
            if state.epoch == 2:
                self.kept, state.stop = state.state_dict(), "half"

    half = Half()
    options: Any = {"batch_size": 6, "accumulate": 2, "epochs": 4, "precision": "bf16", "dtype": torch.float32}
    whole, _ = trained(**options)
    trained(**options, callbacks=[half])
    assert "ranks" not in half.kept
    assert torch.equal(trained(**options, resume=half.kept)[0], whole)


# -- bfloat16 ----------------------------------------------------------------------------------------------------------


def test_gradients_in_bfloat16_are_near_those_in_float32() -> None:
    """
    One step of SGD from the same noise. bfloat16 rounds by 2^-9 at most: through two layers and back a relative error
    of the gradient of a few times that, 2^-6 of its norm is allowed; it is not nought, for something was rounded.
    """
    options: Any = {"dtype": torch.float32, "batch_size": N, "epochs": 1, "noise": "own"}
    start, _ = trained(**options, optim=SGD({"lr": 1e-12}))
    exact, half = (
        trained(**options, precision=precision, optim=SGD({"lr": 1.0}))[0] - start for precision in ("float32", "bf16")
    )
    relative = float((exact - half).norm() / exact.norm())
    assert 1e-5 < relative < 2**-6
    assert half.dtype == torch.float32


def test_a_training_in_bfloat16_ends_near_one_in_float32() -> None:
    options: Any = {"dtype": torch.float32, "batch_size": 8, "epochs": 15}
    exact, lines = trained(**options)
    half, others = trained(**options, precision="bf16")
    assert not torch.equal(exact, half)
    assert abs(lines[-1]["nll"] - others[-1]["nll"]) < 0.02 * lines[0]["nll"]
    assert math.isclose(lines[-1]["kl"], others[-1]["kl"], rel_tol=0.02)


def test_only_the_network_computes_in_bfloat16() -> None:
    seen: list[torch.dtype] = []
    model, _ = program(torch.float32)
    linear = model.template[3]
    linear.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    with model.network_in(torch.bfloat16):
        output = model(*rows(torch.float32))
    assert seen == [torch.bfloat16]
    assert output.dtype == torch.float32
    seen.clear()
    model(*rows(torch.float32))
    assert seen == [torch.float32]


def test_a_recording_of_one_precision_is_not_run_in_another() -> None:
    model, guide = program(torch.float32)
    elbo = FlatMeanField_ELBO()
    options: Any = {"epochs": 2, "batch_size": 8, "elbo": elbo, "progress": False, "seed": 0}
    optim = lambda: SGD({"lr": 0.0})  # noqa: E731
    exact = fit(model, guide, optim(), rows(torch.float32), **options).history[-1]["nll"]
    half = fit(model, guide, optim(), rows(torch.float32), precision="bf16", **options).history[-1]["nll"]
    again = fit(model, guide, optim(), rows(torch.float32), **options).history[-1]["nll"]
    assert exact == again != half


@pytest.mark.parametrize("guide", ["low_rank", "local"])
def test_other_guides_and_layers_take_bfloat16(guide: str) -> None:
    """Layers that draw their outputs draw other noise in bfloat16: there means over 60 steps at one place are near."""
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    model = BNN(MLP(3, 1, [8]), priors.Normal(), likelihoods.Gaussian(0.5), num_data=40)
    made = AutoLowRankNormal(model, rank=2) if guide == "low_rank" else AutoMeanFieldNormal(model, init_scale=0.02)
    data, options = (x, x.sum(1, keepdim=True)), {"epochs": 60, "batch_size": 40, "seed": 0, "progress": False}
    means = []
    for precision in ("float32", "bf16"):
        with local_reparameterization() if guide == "local" else nullcontext():
            lines = fit(model, made, SGD({"lr": 0.0}), data, precision=precision, **options).history  # type: ignore[arg-type]
        means.append(sum(line["nll"] for line in lines) / len(lines))
    assert means[0] != means[1]
    assert math.isclose(*means, rel_tol=0.02)


def test_bfloat16_is_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(ValueError, match="is for models in float32"):
        trained(precision="bf16")

    def program(x: Tensor, y: Any = None) -> None:
        weight = pyro.sample("w", pyro.distributions.Normal(0.0, 1.0))
        with pyro.plate("data", N):
            pyro.sample("obs", pyro.distributions.Normal(weight * x, 1.0), obs=y)

    with pytest.raises(ValueError, match="does not say where its network is"):
        fit(
            program,
            pyro.infer.autoguide.AutoNormal(program),
            Adam({"lr": 1e-2}),
            (torch.randn(N), torch.randn(N)),
            epochs=1,
            batch_size=N,
            precision="bf16",
            progress=False,
        )


# -- devices -----------------------------------------------------------------------------------------------------------


def emptied(module: nn.Module, device: str) -> None:
    """Let a module hold tensors of another device with the same shapes and nothing in them."""
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, value in held.items():
                if value is not None:
                    empty = torch.empty(value.shape, dtype=value.dtype, device=device)
                    trained = isinstance(value, nn.Parameter)
                    held[name] = nn.Parameter(empty, requires_grad=value.requires_grad) if trained else empty


def loss_of(model: BNN, guide: AutoMeanFieldNormal, device: str) -> Tensor:
    """The loss of a batch as a step puts it together: draw, network, likelihood, flat KL."""
    x, y = torch.empty(8, 1, 6, 6, device=device), torch.zeros(8, dtype=torch.long, device=device)
    values, places = guide.plain_draw()
    nll = model.plain_nll(values, lambda scale: scale, x, y)
    place = places["net.0.weight"]
    kl: Tensor = _FlatKL.apply(place.loc, place.scale, None, torch.ones((), device=device))  # type: ignore[no-untyped-call]
    return nll + kl


def test_a_step_has_no_tensor_of_the_cpu_beside_those_of_a_gpu() -> None:
    """With torch's fake tensors of a GPU, which compute nothing and refuse what would be on two devices."""
    model, guide = program(torch.float32)
    with pyro.validation_enabled(False), FakeTensorMode(), torch.no_grad():
        emptied(model, "cuda")
        emptied(guide, "cuda")
        loss = loss_of(model, guide, "cuda")
        assert loss.device.type == "cuda"
        assert loss.dtype == torch.float32
        with pytest.raises(RuntimeError, match=r"same device|two different devices"):
            loss_of(model, guide, "cpu")


def test_gradients_are_where_the_parameters_are() -> None:
    """On torch's meta device, which has no numbers."""
    model, guide = program(torch.float32)
    with pyro.validation_enabled(False):
        emptied(model, "meta")
        emptied(guide, "meta")
        loss_of(model, guide, "meta").backward()  # type: ignore[no-untyped-call]
    assert {(p.grad.device.type, p.grad.dtype) for p in guide.parameters() if p.grad is not None} == {
        ("meta", torch.float32)
    }
    assert all(p.grad is not None for p in guide.parameters())
