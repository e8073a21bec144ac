"""The distributions that penalties imply: normalisers against quadrature, samplers against their own densities."""

import copy
import math
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from reference.penalties_quadrature import group_lasso_log_z
from scipy import stats
from torch import nn

from pyro_bnn.models import priors
from pyro_bnn.models.penalty_priors import (
    GroupLassoDensity,
    GroupLassoPrior,
    L1Prior,
    L2Prior,
    SharedPrior,
    TabulatedDensity,
    fill_groups,
    group_lasso_log_normalizer,
    group_norms,
    group_size,
    target_variance,
)


@pytest.fixture(autouse=True)
def float64() -> None:
    torch.set_default_dtype(torch.float64)


def table_of_laplace(rate: float = 2.0) -> TabulatedDensity:
    x = torch.linspace(-3, 3, 61)
    return TabulatedDensity(x, -rate * x.abs())


class TestGroupLassoDensity:
    @pytest.mark.parametrize("rate", [0.3, 1.0, 40.0])
    @pytest.mark.parametrize("size", [1, 2, 3, 27, 400])
    def test_normaliser_is_the_radial_integral(self, size: int, rate: float) -> None:
        log_z = group_lasso_log_normalizer(size, torch.tensor(rate)).item()
        assert log_z == pytest.approx(group_lasso_log_z(size, rate), abs=1e-9, rel=1e-9)

    def test_integrates_to_one_over_the_plane(self) -> None:
        x = torch.linspace(-40, 40, 4001)
        plane = torch.stack(torch.meshgrid(x, x, indexing="ij"), -1)
        density = GroupLassoDensity(torch.tensor(1.0), (2,)).log_prob(plane).exp()
        assert density.sum().item() * (x[1] - x[0]).item() ** 2 == pytest.approx(1.0, abs=1e-4)  # the kink at 0: h^2

    def test_one_dimension_is_laplace(self) -> None:
        w = torch.linspace(-3, 3, 7)[:, None]
        ours = GroupLassoDensity(torch.tensor(1.7), (1,)).log_prob(w)
        torch.testing.assert_close(ours, dist.Laplace(0.0, 1 / 1.7).log_prob(w[:, 0]))

    def test_groups_of_size_one_are_laplace(self) -> None:
        w = torch.randn(5, 4)
        ours = GroupLassoDensity(torch.tensor(1.7), (4,), group_dim=0).log_prob(w)
        torch.testing.assert_close(ours, dist.Laplace(0.0, 1 / 1.7).log_prob(w).sum(-1))

    @pytest.mark.parametrize(("group_dim", "size"), [(0, 18), (1, 36)])
    def test_a_filter_bank_is_independent_groups(self, group_dim: int, size: int) -> None:
        w = torch.randn(4, 2, 3, 3)
        whole = GroupLassoDensity(torch.tensor(5.0), (4, 2, 3, 3), group_dim).log_prob(w)
        one = GroupLassoDensity(torch.tensor(5.0), (size,))
        parts = sum(one.log_prob(w.select(group_dim, j).flatten()) for j in range(w.shape[group_dim]))
        torch.testing.assert_close(whole, parts)

    @pytest.mark.parametrize(("shape", "group_dim", "size"), [((1,), None, 1), ((3, 4), 0, 4), ((3, 4), 1, 3)])
    def test_sampler_matches_the_variance(self, shape: tuple[int, ...], group_dim: int | None, size: int) -> None:
        rate, draws = 2.5, 200_000
        density = GroupLassoDensity(torch.tensor(rate), shape, group_dim)
        w = density.sample((draws,))
        variance = (size + 1) / rate**2
        torch.testing.assert_close(density.variance, torch.full(shape, variance))
        fourth = 3 * (size + 1) * (size + 3) / rate**4  # E w^4 = E r^4 * 3 / (D (D + 2))
        error = math.sqrt((fourth - variance**2) / draws)
        # 5 standard errors over at most 12 components: false-alarm rate below 1e-5
        assert (w.square().mean(0) - variance).abs().max().item() < 5 * error
        assert w.mean(0).abs().max().item() < 5 * math.sqrt(variance / draws)

    def test_radius_is_gamma(self) -> None:
        w = GroupLassoDensity(torch.tensor(3.0), (6,)).sample((5000,))
        assert stats.kstest(w.norm(dim=-1).numpy(), stats.gamma(6, scale=1 / 3).cdf).pvalue > 1e-4  # false alarms: 1e-4

    def test_batches_of_rates(self) -> None:
        density = GroupLassoDensity(torch.tensor([1.0, 2.0, 3.0]), (4, 2), 0)
        w = torch.randn(5, 3, 4, 2)
        assert density.sample((5,)).shape == (5, 3, 4, 2)
        torch.testing.assert_close(
            density.log_prob(w)[:, 1], GroupLassoDensity(torch.tensor(2.0), (4, 2), 0).log_prob(w[:, 1])
        )
        wider = GroupLassoDensity(torch.tensor(2.0), (4, 2), 0).expand((5, 3))
        assert wider.batch_shape == (5, 3)
        assert wider.log_prob(w).shape == (5, 3)
        assert wider.variance.shape == (5, 3, 4, 2)

    def test_reparameterised_in_the_rate(self) -> None:
        rate = torch.tensor(2.0, requires_grad=True)
        w = GroupLassoDensity(rate, (3,)).rsample((7,))
        (grad,) = torch.autograd.grad(w.sum(), rate)
        torch.testing.assert_close(grad, -w.sum().detach() / 2)  # w = direction * radius / rate

    def test_gradient_at_a_dead_group_is_finite(self) -> None:
        w = torch.zeros(2, 3, requires_grad=True)
        GroupLassoDensity(torch.tensor(1.0), (2, 3), 0).log_prob(w).backward()
        torch.testing.assert_close(w.grad, torch.zeros(2, 3))

    def test_is_a_pyro_site(self) -> None:
        with pyro.validation_enabled(True):
            trace = poutine.trace(lambda: pyro.sample("w", GroupLassoDensity(torch.tensor(1.0), (2, 3), 1))).get_trace()
            w = trace.nodes["w"]["value"]
            expected = -w.norm(dim=0).sum() - 3 * group_lasso_log_normalizer(2, torch.tensor(1.0))
            torch.testing.assert_close(trace.log_prob_sum(), expected)

    def test_refuses_what_is_no_density(self) -> None:
        with pytest.raises(ValueError, match="group_dim=2"):
            GroupLassoDensity(torch.tensor(1.0), (2, 3), 2)
        with pytest.raises(ValueError, match="holds no weights"):
            GroupLassoDensity(torch.tensor(1.0), ())
        with pytest.raises(ValueError, match="rate"):
            GroupLassoDensity(torch.tensor(-1.0), (2,))


class TestTabulatedDensity:
    def test_log_linear_pieces_are_exact(self) -> None:
        table, laplace = table_of_laplace(), dist.Laplace(0.0, 0.5)
        x = torch.linspace(-8, 8, 997)  # also far outside the table
        torch.testing.assert_close(table.log_prob(x), laplace.log_prob(x), atol=1e-12, rtol=0)
        torch.testing.assert_close(table.cdf(x), laplace.cdf(x), atol=1e-13, rtol=0)
        u = torch.linspace(0.001, 0.999, 997)
        torch.testing.assert_close(table.icdf(u), laplace.icdf(u), atol=1e-11, rtol=0)
        assert table.mean.item() == pytest.approx(0.0, abs=1e-13)
        assert table.variance.item() == pytest.approx(0.5, abs=1e-9)

    def test_a_curved_density_is_close(self) -> None:
        x = torch.linspace(-9, 9, 4001)
        table, normal = TabulatedDensity(x, -((x - 0.5) ** 2) / 2), dist.Normal(0.5, 1.0)
        y = torch.linspace(-8, 8, 333)
        torch.testing.assert_close(table.log_prob(y), normal.log_prob(y), atol=3e-6, rtol=0)  # h^2 / 8
        assert table.mean.item() == pytest.approx(0.5, abs=1e-12)
        assert table.variance.item() == pytest.approx(1.0, abs=1e-5)

    def test_flat_and_uneven_pieces(self) -> None:
        table = TabulatedDensity(torch.tensor([-2.0, -1.0, 0.5, 4.0]), torch.tensor([-3.0, 0.0, 0.0, -5.0]))
        u = torch.linspace(1e-6, 1 - 1e-6, 2001)
        torch.testing.assert_close(table.cdf(table.icdf(u)), u, atol=1e-13, rtol=0)
        x = torch.linspace(-30, 30, 600_001)
        assert table.log_prob(x).exp().sum().item() * 1e-4 == pytest.approx(1.0, abs=1e-6)

    def test_sampler_follows_the_density(self) -> None:
        table = TabulatedDensity(torch.tensor([-2.0, -1.0, 0.5, 4.0]), torch.tensor([-3.0, 0.0, 0.0, -5.0]))
        x = table.sample((5000,))
        pvalue = stats.kstest(x.numpy(), lambda v: table.cdf(torch.as_tensor(v)).numpy()).pvalue
        assert pvalue > 1e-4  # false-alarm rate 1e-4

    def test_gradient_is_the_slope(self) -> None:
        x = torch.tensor([-5.0, -0.05, 0.05, 7.0], requires_grad=True)
        table_of_laplace().log_prob(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.tensor([2.0, 2.0, -2.0, -2.0]))

    def test_shapes_and_dtype(self) -> None:
        table = table_of_laplace()
        wide = table.expand((3, 2))
        assert wide.sample((5,)).shape == (5, 3, 2)
        assert wide.log_prob(torch.tensor(0.0)).shape == (3, 2)
        assert wide.to_event(2).log_prob(torch.zeros(3, 2)).shape == ()
        assert wide.variance.shape == (3, 2)
        single = table.to(torch.zeros((), dtype=torch.float32))
        assert single.sample((4,)).dtype == torch.float32
        assert single.log_prob(torch.zeros(4, dtype=torch.float32)).dtype == torch.float32

    def test_refuses_what_does_not_integrate(self) -> None:
        x = torch.linspace(-1, 1, 5)
        with pytest.raises(ValueError, match="rise into the table"):
            TabulatedDensity(x, x)
        with pytest.raises(ValueError, match="do not increase"):
            TabulatedDensity(x.flip(0), -x.abs())
        with pytest.raises(ValueError, match="one table"):
            TabulatedDensity(x, x[1:])


class TestRules:
    @pytest.mark.parametrize(
        "rule",
        [
            L2Prior("glorot"),
            L1Prior("glorot"),
            GroupLassoPrior("incoming", "glorot"),
            GroupLassoPrior("outgoing", "glorot"),
        ],
    )
    def test_every_weight_gets_the_variance_of_the_scheme(self, rule: priors.Prior) -> None:
        layer = nn.Conv2d(2, 5, 3)
        prior = rule("weight", layer, layer.weight)
        assert prior.event_shape == layer.weight.shape
        assert prior.batch_shape == ()
        torch.testing.assert_close(prior.variance, torch.full((5, 2, 3, 3), 2 / (18 + 45)))
        bias = rule("bias", layer, layer.bias)
        torch.testing.assert_close(bias.variance, torch.full((5,), 2 / (18 + 45)))
        assert isinstance(bias.base_dist, dist.Normal)

    def test_schemes(self) -> None:
        layer = nn.Linear(6, 4)
        assert target_variance("fan_in", layer, layer.weight) == pytest.approx(1 / 6)
        assert target_variance("kaiming", layer, layer.bias) == pytest.approx(2 / 6)
        assert target_variance("glorot", layer, layer.weight) == pytest.approx(2 / 10)
        assert target_variance(lambda n_in, n_out: 3 / n_out, layer, layer.weight) == pytest.approx(3 / 4)

    def test_l2_with_fan_in_is_graves(self) -> None:
        layer = nn.Linear(6, 4)
        ours, theirs = (r("weight", layer, layer.weight) for r in (L2Prior(), priors.FanIn()))
        torch.testing.assert_close(ours.log_prob(layer.weight), theirs.log_prob(layer.weight))

    def test_shared_prior_is_the_sum_over_weights(self) -> None:
        layer = nn.Linear(3, 2).float()
        prior = SharedPrior(table_of_laplace())("weight", layer, layer.weight)
        assert prior.event_shape == (2, 3)
        assert prior.sample().dtype == torch.float32
        expected = dist.Laplace(0.0, 0.5).log_prob(layer.weight.double()).sum().float()
        torch.testing.assert_close(prior.log_prob(layer.weight), expected, atol=1e-4, rtol=0)

    @pytest.mark.parametrize("family", [dist.Normal, dist.Laplace])
    def test_shared_prior_follows_the_dtype(self, family: type[dist.Normal] | type[dist.Laplace]) -> None:
        density = family(torch.tensor(0.5), torch.tensor(2.0))  # float64
        weight = torch.zeros(2, 3, dtype=torch.float32)
        prior = SharedPrior(density)("weight", None, weight)
        assert prior.sample().dtype == torch.float32
        torch.testing.assert_close(
            prior.log_prob(weight).double(), 6 * density.log_prob(torch.tensor(0.0)), rtol=1e-6, atol=0
        )

    def test_spec_names_the_rule(self) -> None:
        assert GroupLassoPrior("outgoing").spec() == {
            "name": "GroupLassoPrior",
            "groups": "outgoing",
            "variance": "fan_in",
        }

    def test_group_norms(self) -> None:
        w = torch.tensor([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]])
        torch.testing.assert_close(group_norms(w, "incoming"), torch.tensor([5.0, 0.0, 10.0]))
        torch.testing.assert_close(group_norms(w, "outgoing"), torch.tensor([45.0, 80.0]).sqrt())

    @pytest.mark.parametrize("conv_groups", [1, 2, 8])
    @pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d, nn.Conv1d, nn.ConvTranspose3d])
    def test_groups_of_convolutions_are_channels(self, kind: Any, conv_groups: int) -> None:
        """Scaling one channel's weights out, or in, is seen in that channel alone."""
        conv = kind(8, 16, 3, groups=conv_groups)
        spatial = [5] * len(conv.kernel_size)
        for groups, channels in (("outgoing", 8), ("incoming", 16)):
            for j in (0, 3, channels - 1):
                dead = torch.arange(channels) != j
                with torch.no_grad():
                    layer = copy.deepcopy(conv)
                    layer.bias.zero_()
                    layer.weight.copy_(fill_groups(conv.weight, dead, groups, conv))
                    norms = group_norms(layer.weight, groups, layer)
                    assert (norms > 0).nonzero().flatten().tolist() == [j]
                    if groups == "outgoing":
                        ones = torch.eye(8).reshape(8, 8, *[1] * len(spatial)).expand(8, 8, *spatial)
                        used = layer(ones).flatten(1).any(1)
                    else:
                        used = layer(torch.rand(1, 8, *spatial)).flatten(2).any(2)[0]
                assert used.nonzero().flatten().tolist() == [j]
            size = conv.weight.numel() // channels
            assert group_size(conv.weight, groups, conv) == size
            prior = GroupLassoPrior(groups, lambda n_in, n_out: 0.25)("w", conv, conv.weight)
            rate = math.sqrt((size + 1) / 0.25)
            assert (prior.num_groups, prior.group_size) == (channels, size)
            difference = prior.log_prob(conv.weight) - prior.log_prob(torch.zeros_like(conv.weight))
            torch.testing.assert_close(difference, -rate * group_norms(conv.weight, groups, conv).sum())
            draws = prior.expand((2,)).sample((300,))
            assert draws.shape == (300, 2, *conv.weight.shape)
            # 5 sd of the mean of 600 Gamma(D, rate) radii per channel, mean D / rate
            norms = torch.stack([group_norms(draw, groups, conv) for draw in draws.flatten(0, 1)])
            assert float((norms.mean(0) - size / rate).abs().max()) < 5 * math.sqrt(size / 600) / rate

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="blocks=3"):
            GroupLassoDensity(1.0, (4, 2), 1, blocks=3)
        with pytest.raises(ValueError, match="blocks=2"):
            GroupLassoDensity(1.0, (4, 2), 0, blocks=2)
        with pytest.raises(ValueError, match="variance='lecun' is unknown"):
            L1Prior("lecun")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="groups='rows' is unknown"):
            GroupLassoPrior("rows")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="gives -1"):
            target_variance(lambda n_in, n_out: -1, None, torch.zeros(2, 2))
        with pytest.raises(ValueError, match="has no groups"):
            group_norms(torch.zeros(3), "incoming")
        with pytest.raises(ValueError, match="one weight"):
            SharedPrior(dist.Normal(0.0, 1.0).expand((3,)))
        assert SharedPrior(dist.Normal(0.0, 1.0)).spec() is None
