"""BNN: the program it states, any network inside, draws by vmap, and the user's module left alone."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pyro
import pyro.poutine as poutine
import pytest
import torch
from programs import CLASSES, FEATURES, ROWS, Attention, Recurrent, Tied, batch_norm, classes
from pyro.infer import Predictive, TraceMeanField_ELBO
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pyro_bnn.assemble import build_model
from pyro_bnn.common.own_state import model_state
from pyro_bnn.guides import AutoMeanFieldNormal, StoredDraws
from pyro_bnn.inference import FlatMeanField_ELBO, local_reparameterization, predictive_draws
from pyro_bnn.models import BNN, MLP, LeNet5, likelihoods, priors

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLP(FEATURES, CLASSES, [5]),
    "batch_norm": batch_norm,
    "layer_norm": lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.LayerNorm(5), nn.Linear(5, CLASSES)),
    "tied": Tied,
    "shared": lambda: (lambda layer: nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(FEATURES, CLASSES)))(
        nn.Linear(FEATURES, FEATURES)
    ),
    "attention": Attention,
    "recurrent": Recurrent,
}


def make(net: nn.Module | str = "mlp", **options: Any) -> BNN:
    net = NETWORKS[net]() if isinstance(net, str) else net
    return BNN(net, priors.Normal(), likelihoods.Categorical(), ROWS, **options)


def weights_of(model: BNN, *lead: int) -> dict[str, Tensor]:
    return {name: 0.5 * torch.randn(*lead, *prior.event_shape) for name, prior in model.priors().items()}


def with_weights(net: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """The network itself with these weights written into it."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    return net


# -- the program ---------------------------------------------------------------------------------------------------


def test_log_joint_is_prior_plus_n_over_b_times_log_likelihood() -> None:
    model = make()
    x, y = classes()
    x, y = x[:10], y[:10]
    weights = weights_of(model)
    conditioned = poutine.condition(model, data={f"net.{name}": w for name, w in weights.items()})
    trace = poutine.trace(conditioned).get_trace(x, y)
    log_prior = sum(-0.5 * w.double().square().sum() - w.numel() * 0.9189385332046727 for w in weights.values())
    logits = with_weights(model.template, weights)(x).double()
    log_likelihood = logits.log_softmax(-1)[torch.arange(10), y].sum()
    torch.testing.assert_close(
        trace.log_prob_sum().double(), log_prior + ROWS / 10 * log_likelihood, rtol=1e-5, atol=1e-4
    )


def test_sites_are_net_and_the_parameter_s_name() -> None:
    x, y = classes()
    trace = poutine.trace(make("tied")).get_trace(x, y)
    assert [name for name in trace.stochastic_nodes if name != "data"] == [
        "net.first.weight",
        "net.first.bias",
        "net.second.bias",
        "net.out.weight",
        "net.out.bias",
    ]
    assert trace.observation_nodes == ["obs"]
    assert [frame.name for frame in trace.nodes["obs"]["cond_indep_stack"]] == ["data"]


@pytest.mark.parametrize("net", NETWORKS)
@pytest.mark.parametrize("training", [True, False])
def test_output_is_the_network_s_own(net: str, training: bool) -> None:
    torch.manual_seed(1)
    network = NETWORKS[net]()
    model = make(network).train(training)
    weights, x = weights_of(model), classes()[0]
    with torch.no_grad():
        expected = with_weights(network, weights).train(training)(x)
        torch.testing.assert_close(model.output(x, weights), expected)


@pytest.mark.parametrize("net", NETWORKS)
def test_the_user_s_module_is_left_alone(net: str) -> None:
    network = NETWORKS[net]().eval()
    before = copy.deepcopy(network.state_dict())
    model = make(network).train()
    x, y = classes()
    model(x, y)
    assert not network.training
    assert all(p.requires_grad and isinstance(p, nn.Parameter) for p in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("net", NETWORKS)
def test_no_sample_stays_in_the_model(net: str) -> None:
    model = make(net)
    x, y = classes()
    before = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    model(x, y)
    model.output(x, weights_of(model, 2))
    assert {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)} == before
    held = [*model.parameters(), *model.buffers()]
    assert all(t.is_leaf and not torch._C._functorch.is_functorch_wrapped_tensor(t) for t in held)


def test_batch_statistics_are_taken_in_training_only() -> None:
    model, x = make("batch_norm"), classes()[0]
    norm: Any = model.template[1]  # type: ignore[index]
    model.eval()
    model(x)
    assert int(norm.num_batches_tracked) == 0
    model.train()
    model(x)
    assert int(norm.num_batches_tracked) == 1
    assert not torch.equal(norm.running_mean, torch.zeros(5))


def test_predicting_on_more_rows_than_n() -> None:
    model = make()
    x = torch.randn(5 * ROWS, FEATURES)
    assert model(x).shape == (5 * ROWS, CLASSES)
    guide = AutoMeanFieldNormal(model)
    assert Predictive(model, guide=guide, num_samples=2)(x)["obs"].shape == (2, 5 * ROWS)


def test_rows_in_order_use_no_random_numbers() -> None:
    model = make()
    x, y = classes()
    weights = {f"net.{name}": w for name, w in weights_of(model).items()}
    before = torch.get_rng_state()
    poutine.condition(model, data=weights)(x, y)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("local", [False, True])
def test_two_models_in_one_process_keep_their_parameters(local: bool) -> None:
    with pyro.settings.context(module_local_params=local):
        first, second = make("batch_norm"), make("batch_norm")
        x, y = classes()
        with poutine.trace(param_only=True) as seen:
            first(x, y)
            second(x, y)
        assert len(seen.trace.nodes) == 4
        with torch.no_grad():
            first.get_parameter("deterministic.1.weight_unconstrained").fill_(7.0)
        first(x, y)
        second(x, y)
        assert second.get_parameter("deterministic.1.weight_unconstrained").tolist() == [1.0] * 5


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_shares_no_parameter(duplicate: Callable[[BNN], BNN], local: bool) -> None:
    with pyro.settings.context(module_local_params=local):
        model = make("batch_norm")
        x, y = classes()
        model(x, y)
        twin = duplicate(model)
        twin(x, y)
        with torch.no_grad():
            model.get_parameter("deterministic.1.weight_unconstrained").fill_(7.0)
        twin(x, y)
        assert twin.get_parameter("deterministic.1.weight_unconstrained").tolist() == [1.0] * 5
        assert list(twin.state_dict()) == list(model.state_dict())


def test_sample_weights_count_rows() -> None:
    model = make()
    x, y = classes()
    data = {f"net.{name}": w for name, w in weights_of(model).items()}
    conditioned = poutine.condition(model, data=data)

    def log_likelihood(*args: Any) -> Tensor:
        trace = poutine.trace(conditioned).get_trace(*args)
        trace.compute_log_prob()
        return trace.nodes["obs"]["log_prob_sum"]  # type: ignore[no-any-return]

    ones = log_likelihood(x, y, torch.ones(ROWS))
    torch.testing.assert_close(ones, log_likelihood(x, y))
    weights = torch.ones(ROWS)
    weights[0], weights[1] = 2.0, 0.0  # the first row twice, the second not at all
    rows = torch.tensor([0, 0, *range(2, ROWS)])
    torch.testing.assert_close(log_likelihood(x, y, weights), log_likelihood(x[rows], y[rows]))


def test_float64_all_the_way() -> None:
    model = BNN(batch_norm(), priors.Kaiming(), likelihoods.LearnedGaussian(), ROWS).double()
    x = torch.randn(ROWS, FEATURES, dtype=torch.float64)
    trace = poutine.trace(model).get_trace(x, torch.randn(ROWS, CLASSES, dtype=torch.float64))
    trace.compute_log_prob()
    assert {trace.nodes[name]["value"].dtype for name in trace.stochastic_nodes if name != "data"} == {torch.float64}
    assert trace.nodes["obs"]["log_prob"].dtype == torch.float64


# -- draws ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", NETWORKS)
@pytest.mark.parametrize("training", [True, False])
def test_leading_draw_dimensions_are_a_loop_over_draws(net: str, training: bool) -> None:
    model = make(net).train(training)
    x = classes()[0]
    weights = weights_of(model, 3)
    reference = copy.deepcopy(model)
    with torch.no_grad():
        together = model.output(x, weights)
        one_by_one = torch.stack([reference.output(x, {n: w[s] for n, w in weights.items()}) for s in range(3)])
    assert together.shape == (3, ROWS, CLASSES)
    torch.testing.assert_close(together, one_by_one, rtol=1e-4, atol=1e-5)
    for (name, a), (_, b) in zip(model.named_buffers(), reference.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("lead", [(1,), (3,), (3, 1), (2, 3, 1), (1, 1)])
def test_the_last_singleton_of_several_stands_for_the_rows(lead: tuple[int, ...]) -> None:
    model, x = make(), classes()[0]
    weights = weights_of(model, *lead)
    expected = (*(lead if len(lead) == 1 else lead[:-1]), ROWS, CLASSES)
    assert model.output(x, weights).shape == expected


def test_draws_with_gradients_agree_with_the_loop() -> None:
    model, x = make("tied"), classes()[0]
    weights = {name: w.requires_grad_() for name, w in weights_of(model, 3).items()}
    model.output(x, weights).square().sum().backward()
    mapped = {name: w.grad.clone() for name, w in weights.items() if w.grad is not None}
    for w in weights.values():
        w.grad = None
    sum(model.output(x, {n: w[s] for n, w in weights.items()}).square().sum() for s in range(3)).backward()  # type: ignore[union-attr]
    assert mapped.keys() == weights.keys()
    for name, w in weights.items():
        torch.testing.assert_close(mapped[name], w.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("net", NETWORKS)
def test_parallel_predictive_is_the_sequential_one(net: str) -> None:
    model, x = make(net).eval(), classes()[0]
    samples = {f"net.{name}": w for name, w in weights_of(model, 4).items()}
    logits = [
        Predictive(model, posterior_samples=dict(samples), parallel=parallel, return_sites=("_RETURN",))(x)["_RETURN"]
        for parallel in (False, True)
    ]
    assert logits[0].shape == (4, ROWS, CLASSES)
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-5)


def test_an_error_of_the_network_itself_shows() -> None:
    model = make()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model.output(torch.randn(ROWS, FEATURES + 1), weights_of(model, 3))


def test_dropout_differs_between_draws_and_rows() -> None:
    net = nn.Sequential(nn.Linear(FEATURES, 50), nn.Dropout(0.5), nn.Linear(50, CLASSES))
    model = make(net).train()
    weights = {name: w.expand(4, *w.shape) for name, w in weights_of(model).items()}
    output = model.output(torch.ones(2, FEATURES), weights)
    assert not torch.allclose(output[0], output[1])
    assert not torch.allclose(output[:, 0], output[:, 1])


# -- which parameters are random -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "random"),
    [
        ({}, {"0.weight", "0.bias", "3.weight", "3.bias"}),
        ({"random": "*"}, {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}),
        ({"random": "3.*"}, {"3.weight", "3.bias"}),
        ({"random": nn.Linear, "deterministic": "*.bias"}, {"0.weight", "3.weight"}),
        ({"random": [nn.BatchNorm1d, "0.bias"]}, {"1.weight", "1.bias", "0.bias"}),
        ({"random": lambda name, module, p: p.dim() == 2}, {"0.weight", "3.weight"}),
        ({"deterministic": ["0.*"]}, {"3.weight", "3.bias"}),
    ],
)
def test_choosing_by_pattern_type_or_predicate(options: dict[str, Any], random: set[str]) -> None:
    model = make("batch_norm", **options)
    assert set(model.random_names) == random
    assert set(model.deterministic_names) == set(dict(batch_norm().named_parameters())) - random


@pytest.mark.parametrize("layer", [nn.LayerNorm(5), nn.GroupNorm(1, 5), nn.RMSNorm(5), nn.BatchNorm1d(5)])
def test_normalisation_is_deterministic_by_default(layer: nn.Module) -> None:
    model = make(nn.Sequential(nn.Linear(FEATURES, 5), layer, nn.Linear(5, CLASSES)))
    assert all(name.startswith("1.") for name in model.deterministic_names)
    assert len(model.deterministic_names) == len(list(layer.parameters()))


def test_deterministic_parameters_start_from_the_network_and_are_used() -> None:
    net = batch_norm()
    with torch.no_grad():
        net[1].weight.fill_(3.0)  # type: ignore[index, union-attr, operator]
    model = make(net).eval()
    weights, x = weights_of(model), classes()[0]
    with torch.no_grad():
        before = model.output(x, weights)
        torch.testing.assert_close(before, with_weights(net, weights).eval()(x))
        model.get_parameter("deterministic.1.weight_unconstrained").fill_(1.0)
        assert not torch.allclose(model.output(x, weights), before)


# -- descriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        lambda: BNN(LeNet5(3, 7, 32), priors.Xavier(), likelihoods.Categorical(link="sigmoid"), 50),
        lambda: BNN(
            MLP(3, 2), priors.PerLayer({"*.bias": priors.Normal()}), likelihoods.LearnedGaussian(0.3), 9, random="*.1.*"
        ),
    ],
)
def test_spec_builds_the_same_model(model: Callable[[], BNN]) -> None:
    first = model()
    spec = first.spec()
    assert spec is not None
    second = build_model(spec)
    assert second.spec() == spec
    assert second.random_names == first.random_names
    assert set(second.state_dict()) == set(first.state_dict())


def test_a_network_without_config_has_no_spec() -> None:
    assert make("tied").spec() is None


def test_kept_tensors_leave_out_the_initial_weights() -> None:
    kept = make("batch_norm").kept_tensors()
    assert kept == {
        "net.1.running_mean",
        "net.1.running_var",
        "net.1.num_batches_tracked",
        "deterministic.1.weight_unconstrained",
        "deterministic.1.bias_unconstrained",
    }
    assert make("tied").kept_tensors() == set()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ({"num_data": 0}, {}, ValueError, "num_data=0 .* >= 1"),
        ({"num_data": True}, {}, ValueError, "num_data=True"),
        ({"num_data": 10.0}, {}, ValueError, "num_data=10.0"),
        ({"net": "lenet5"}, {}, TypeError, "net is a str.*nn.Module"),
        ({"net": nn.ReLU()}, {}, ValueError, "no parameters"),
        ({"net": nn.Sequential(nn.LazyLinear(4))}, {}, ValueError, "'0.weight' has no shape yet: run .* once"),
        ({"likelihood": likelihoods.Categorical}, {}, TypeError, r"likelihoods.Categorical\(\)"),
        ({"prior": priors.Kaiming}, {}, TypeError, r"priors.Kaiming\(\)"),
        ({}, {"random": "conv*"}, ValueError, "random: 'conv\\*' matches no parameter.*layers.0.weight"),
        ({}, {"random": nn.Conv2d}, ValueError, "random: .*Conv2d.* matches no parameter"),
        ({}, {"deterministic": "norm*"}, ValueError, "deterministic: 'norm\\*' matches no parameter"),
        ({}, {"deterministic": "*"}, ValueError, "no parameter is random.*random="),
    ],
)
def test_bad_input_names_value_and_remedy(
    arguments: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    good = {"net": MLP(3, 2), "prior": priors.Normal(), "likelihood": likelihoods.Categorical(), "num_data": 10}
    with pytest.raises(error, match=message):
        BNN(**{**good, **arguments}, **options)  # type: ignore[arg-type]


class Twice(nn.Module):
    def __init__(self, pair: bool) -> None:
        super().__init__()
        self.layer, self.pair = nn.Linear(FEATURES, 1), pair

    def forward(self, x: Tensor) -> Any:
        return (self.layer(x), x) if self.pair else self.layer(x).squeeze(-1)


@pytest.mark.parametrize(("pair", "message"), [(True, "returns a tuple"), (False, r"returns shape \(24,\)")])
def test_a_network_must_return_one_matrix(pair: bool, message: str) -> None:
    model = BNN(Twice(pair), priors.Normal(), likelihoods.Gaussian(), ROWS)
    x, _ = classes()
    with pytest.raises(ValueError, match=message + r" for 24 rows; it must return one tensor \(B, K\)"):
        model(x, x[:, 0])


# -- what a network reads in the backward pass -----------------------------------------------------------------------


class Blocks(nn.Module):
    """Three layers, the middle one as a block that subclasses run in other ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)
        self.calls = 0

    def block(self, h: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(self.b(h))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.block(self.a(x)))


class Reentrant(Blocks):
    def forward(self, x: Tensor) -> Tensor:
        return self.c(checkpoint(self.block, self.a(x), use_reentrant=True))


class Checkpointed(Blocks):
    def forward(self, x: Tensor) -> Tensor:
        return self.c(checkpoint(self.block, self.a(x), use_reentrant=False))


class Shifted(Blocks):
    """With a kink of its own, of which a checkpoint saves no weight: nothing but the mask would be wrong."""

    def block(self, h: Tensor) -> Tensor:
        return torch.relu(h + self.a.bias) @ self.b.weight.T

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.block(self.a(x)))


class ShiftedCheckpointed(Shifted):
    def forward(self, x: Tensor) -> Tensor:
        return self.c(checkpoint(self.block, self.a(x), use_reentrant=False))


class _OwnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor, module: nn.Module) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(h)
        return h @ weight.T + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (h,) = ctx.saved_tensors
        return gradient @ ctx.module.weight, gradient.T @ h, gradient.sum(0), None


class OwnFunction(Blocks):
    def block(self, h: Tensor) -> Tensor:
        return torch.tanh(_OwnLinear.apply(h, self.b.weight, self.b.bias, self.b))  # type: ignore[no-untyped-call]


class TensorHook(Blocks):
    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * self.b.weight.mean())
        return self.c(self.block(h))


class HookByHand(Blocks):
    """What TensorHook does, without a hook: the gradient to a is scaled."""

    def forward(self, x: Tensor) -> Tensor:
        h, scale = self.a(x), self.b.weight.mean().detach()
        return self.c(self.block(h * scale + (h * (1 - scale)).detach()))


def gradients_of(net: nn.Module, elbo: Any, steps: int = 2) -> tuple[list[float], Tensor]:
    pyro.set_rng_seed(3)
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), 8)
    guide = AutoMeanFieldNormal(model, init_scale=0.2)
    x, y = torch.linspace(-1, 1, 24).reshape(8, 3), torch.arange(8) % 2
    pyro.set_rng_seed(1)
    losses = [elbo.loss_and_grads(model, guide, x, y) for _ in range(steps)]
    return losses, torch.cat([p.grad for p in guide.parameters() if p.grad is not None])


ELBOS_IN_BACKWARD = [
    lambda: TraceMeanField_ELBO(),
    lambda: TraceMeanField_ELBO(num_particles=2),
    lambda: TraceMeanField_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=1),
    lambda: FlatMeanField_ELBO(trace=False),
]


@pytest.mark.filterwarnings("ignore:the output of Shifted has no gradient with respect to b.bias")  # nor has it
@pytest.mark.parametrize("elbo", ELBOS_IN_BACKWARD)
@pytest.mark.parametrize(
    ("net", "plain"),
    [(Checkpointed, Blocks), (ShiftedCheckpointed, Shifted), (OwnFunction, Blocks)],
)
def test_what_the_backward_pass_reads_are_the_weights_of_the_draw(
    net: type[nn.Module], plain: type[nn.Module], elbo: Any
) -> None:
    pyro.set_rng_seed(0)
    ours = net()
    theirs = plain()
    theirs.load_state_dict(ours.state_dict())
    losses, gradient = gradients_of(ours, elbo())
    expected_losses, expected = gradients_of(theirs, elbo())
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_a_hook_on_a_tensor_sees_the_weights_of_the_draw() -> None:
    pyro.set_rng_seed(0)
    ours = TensorHook()
    theirs = HookByHand()
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(
        gradients_of(ours, TraceMeanField_ELBO())[1], gradients_of(theirs, TraceMeanField_ELBO())[1]
    )


@pytest.mark.parametrize("elbo", ELBOS_IN_BACKWARD)
def test_a_reentrant_checkpoint_is_refused(elbo: Any) -> None:
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        gradients_of(Reentrant(), elbo())


def test_losses_summed_before_one_backward_pass_keep_their_own_weights() -> None:
    pyro.set_rng_seed(0)
    ours, theirs = Checkpointed(), Blocks()
    theirs.load_state_dict(ours.state_dict())
    found = []
    for net in (ours, theirs):
        pyro.set_rng_seed(3)
        model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), 8)
        guide = AutoMeanFieldNormal(model, init_scale=0.2)
        x, y = torch.linspace(-1, 1, 24).reshape(8, 3), torch.arange(8) % 2
        pyro.set_rng_seed(1)
        TraceMeanField_ELBO(num_particles=3).differentiable_loss(model, guide, x, y).backward()
        found.append(torch.cat([p.grad for p in guide.parameters()]))
    torch.testing.assert_close(*found)


def test_a_checkpointed_network_keeps_its_counters_and_running_statistics() -> None:
    class Counting(Checkpointed):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(checkpoint(self.block, self.norm(self.a(x)), use_reentrant=False))

    model = BNN(Counting(), priors.Kaiming(), likelihoods.Categorical(), 8)
    guide = AutoMeanFieldNormal(model)
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    for _ in range(3):
        TraceMeanField_ELBO().loss_and_grads(model, guide, x, y)
    assert int(model.template.norm.num_batches_tracked) == 3
    assert model.template.calls >= 3
    assert not torch.equal(model.template.norm.running_mean, torch.zeros(4))


# -- weights without a part in the output ----------------------------------------------------------------------------


class Held(nn.Module):
    """Reaches its first layer in a way that is given, and its second as a module."""

    def __init__(self, reach: Callable[[nn.Linear], Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)
        self.held = [reach(self.first)]  # a plain list: no module below

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.held[0](x))


def without_gradient(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    return torch.no_grad()(layer.forward)


def step(model: BNN, **guide: Any) -> None:
    FlatMeanField_ELBO().loss_and_grads(model, AutoMeanFieldNormal(model, **guide), *classes())


@pytest.mark.parametrize("reach", [lambda layer: lambda x: layer(x), without_gradient])
def test_layers_that_the_weights_do_not_come_to_are_named(reach: Any) -> None:
    """The copy's closure leads to the layer of the original network, or nothing leads back to its weights."""
    model = make(Held(reach))
    with pytest.warns(UserWarning, match="no gradient with respect to first.weight, first.bias: there the guide"):
        step(model)
    step(model)  # once
    step(make(Held(reach), deterministic="first.*"))


def test_a_network_that_no_weight_comes_to_is_refused() -> None:
    layer = nn.Linear(FEATURES, CLASSES)
    network = Held(lambda first: lambda x: x)
    network.second.forward = lambda x: layer(x)  # type: ignore[method-assign]
    model = make(network)
    for _ in range(2):
        with pytest.raises(ValueError, match="Held has no gradient with respect to any random parameter"):
            step(model)


@pytest.mark.parametrize("net", [*NETWORKS, "per draw", "frozen", "local"])
def test_networks_as_they_should_be_are_not_suspected(net: str) -> None:
    model = make(net if net in NETWORKS else "mlp")
    if net == "per draw":
        guide = AutoMeanFieldNormal(model)
        TraceMeanField_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=1).loss_and_grads(
            model, guide, *classes()
        )
    elif net == "frozen":
        step(model, freeze=["loc", "scale"])
    elif net == "local":
        guide = AutoMeanFieldNormal(model)
        with local_reparameterization():  # the first step is plain, the second is not
            FlatMeanField_ELBO().loss_and_grads(model, guide, *classes())
            model._reach_known = False
            FlatMeanField_ELBO().loss_and_grads(model, guide, *classes())
    else:
        step(model)
    assert model._reach_known is (net != "frozen")


def test_a_parameter_that_has_gone_is_named() -> None:
    model = make("mlp")
    name = model.random_names[-1]
    path, _, last = name.rpartition(".")
    del model.template.get_submodule(path)._parameters[last]
    with pytest.raises(ValueError, match=f"no parameter '{name}' any more"):
        model(classes()[0])


# -- without the network's own values --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "tied", "batch_norm"])
def test_a_model_that_keeps_no_values_is_the_same_program_in_less_memory(name: str) -> None:
    torch.manual_seed(0)
    net = NETWORKS[name]()
    kept, bare = make(net), make(net, keep_values=False)
    for parameter in (bare.template.get_parameter(n) for n in bare.random_names):
        assert parameter.untyped_storage().nbytes() == parameter.element_size()
        assert not parameter.any()
    guides = []
    for model in (kept, bare):
        torch.manual_seed(1)
        guides.append(AutoMeanFieldNormal(model))
    assert all(map(torch.equal, guides[0].parameters(), guides[1].parameters()))
    weights = weights_of(kept)
    x, _ = classes()
    outputs = [model.eval().output(x, weights) for model in (kept, bare, copy.deepcopy(bare))]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_a_model_that_keeps_no_values_is_copied_and_its_state_restored() -> None:
    model = make("batch_norm", keep_values=False)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    norm: Any = model.template[1]  # type: ignore[index]
    norm.running_mean.fill_(3.0)
    with pytest.raises(RuntimeError, match="Missing"):
        model.load_state_dict({})
    model.load_state_dict(state)
    assert not norm.running_mean.any()
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        sizes = [other.template.get_parameter(name).untyped_storage().nbytes() for name in other.random_names]
        assert sizes == [4] * len(sizes)


def test_a_guide_cannot_start_from_values_that_are_not_kept() -> None:
    with pytest.raises(ValueError, match="keep_values=True"):
        AutoMeanFieldNormal(make(keep_values=False), init_loc="net")
    with pytest.raises(TypeError, match="give True or False"):
        make(keep_values=1)


def test_stored_draws_that_move_the_model_predict_without_its_values() -> None:
    """Batch normalisation's statistics come with each draw, and are what they were afterwards."""
    torch.manual_seed(0)
    net, (x, _) = NETWORKS["batch_norm"](), classes()
    predictions = []
    for keep_values in (True, False):
        model = make(net, keep_values=keep_values)
        size = sum(model.template.get_parameter(name).numel() for name in model.random_names)
        states = [{name: value + s for name, value in model_state(model).items()} for s in range(3)]
        guide = StoredDraws.from_flat(model, torch.linspace(-1, 1, 3 * size).view(3, size), states=states)
        before = model_state(model)
        predictions.append(torch.stack([draw.log_probs for draw in predictive_draws(model, guide, x, 3, seed=0)]))
        assert all(torch.equal(value, before[name]) for name, value in model_state(model).items())
    assert torch.equal(*predictions)
