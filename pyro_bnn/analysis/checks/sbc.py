"""
Simulation-based calibration: whether a way to make posteriors is right for a program.

    w* ~ p(w),    y ~ p(y | x, w*),    w_1 .. w_L ~ q(w | x, y),    r = #{l : f(w_l) < f(w*)}

Over data sets drawn so, the rank r of any quantity f is uniform on 0..L if q is the posterior. A q that is too narrow
has its ranks at both ends, one that is too wide in the middle, one that leans at one end. The quantities are by default
the program's noise-free predictions at fixed inputs, because hidden units can be exchanged and their weights cannot be
compared; with a variational q this is the calibration of Yao et al. (VSBC) in function space. Ties, as of points, are
broken at random, so that u = (r + U(0, 1)) / (L + 1) is exactly uniform for the posterior.

    uniform   Kolmogorov-Smirnov test of u
    lean      signed rank test of u - 1/2, which is symmetric for a q that leans nowhere
    spread    12 var(u): 1 for the posterior, towards 3 for a q that is too narrow, towards 0 for one too wide

The p-values are Holm-adjusted over quantities, so that a right q is called wrong with probability at most `level`,
whatever the number of quantities. Draws have to be independent: thin those of a chain. The prior passes, too: that a
posterior has learned from its data is not what this checks.

References: Talts et al. 2018, arXiv:1804.06788; Yao et al. 2018, arXiv:1802.02538, who compare u with 1 - u by a
two-sample test as if the two were independent, where the signed rank test keeps its level; Saeilynoja et al. 2022,
arXiv:2103.10522, for the band of the plot.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import pyro.poutine as poutine
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.analysis.checks.rows import At
from pyro_bnn.analysis.scores.signal_to_noise import draw_sites
from pyro_bnn.common.contract import contract_of
from pyro_bnn.common.sites import sample_sites
from pyro_bnn.posterior import Posterior

__all__ = ["RankCheck", "sbc"]

Values = dict[str, Tensor]
Shape = Literal["calibrated", "too narrow", "too wide", "leaning", "not uniform"]


@final
@dataclass(frozen=True)
class RankCheck:
    """
    Ranks of true quantities among posterior draws, and what they say.

    :param ranks: (M, Q), for M data sets and Q quantities.
    :param num_draws: L.
    :param seed: of the numbers that break ties.
    :param level: the probability to call a right posterior wrong.
    """

    ranks: NDArray[np.int64]
    num_draws: int
    seed: int = 0
    level: float = 0.05

    @property
    def u(self) -> NDArray[np.float64]:
        """Ranks as numbers in (0, 1), uniform for the posterior, (M, Q)."""
        noise = np.random.default_rng(self.seed).uniform(size=self.ranks.shape)
        return (self.ranks + noise) / (self.num_draws + 1)

    def p_values(self) -> NDArray[np.float64]:
        """Return the Kolmogorov-Smirnov p-value of each quantity, Holm-adjusted, (Q,)."""
        from scipy import stats

        return _holm([stats.kstest(u, "uniform").pvalue for u in self.u.T])

    def lean(self) -> NDArray[np.float64]:
        """Return the p-values of the signed rank test of u - 1/2, Holm-adjusted, (Q,)."""
        from scipy import stats

        return _holm([stats.wilcoxon(u - 0.5).pvalue for u in self.u.T])

    def spread(self) -> NDArray[np.float64]:
        """Return 12 var(u) of each quantity, (Q,): above 1 is too narrow, below is too wide."""
        around: NDArray[np.float64] = 12 * np.square(self.u - 0.5).mean(0)
        return around

    @property
    def calibrated(self) -> bool:
        """Whether the ranks are those of the posterior, as far as the data sets can tell."""
        return bool(self.p_values().min() > self.level)

    @property
    def shape(self) -> Shape:
        """What is wrong with the posteriors, in two words, of the quantity that shows it most."""
        adjusted = self.p_values()
        if adjusted.min() > self.level:
            return "calibrated"
        worst = int(adjusted.argmin())
        if self.lean()[worst] <= self.level:
            return "leaning"
        # the variance of (u - 1/2)^2 of a uniform u is 1/180
        error = 12 / np.sqrt(180 * len(self.ranks))
        excess = self.spread()[worst] - 1
        return "not uniform" if abs(excess) < 2 * error else "too narrow" if excess > 0 else "too wide"

    def __str__(self) -> str:
        sets, quantities = self.ranks.shape
        p, spread = self.p_values().min(), self.spread()
        return (
            f"{self.shape}: {sets} data sets, {quantities} quantities, {self.num_draws} draws; smallest p {p:.2g} "
            f"(Holm), spread {spread.mean():.2f} ({spread.min():.2f} to {spread.max():.2f}; 1 is right, more is too "
            f"narrow)"
        )

    def plot(self, ax: Any = None) -> Any:
        """
        Draw the ECDF of each quantity's ranks minus the uniform one, with its simultaneous band.

        :param ax: matplotlib's axes to draw on; default new ones.
        """
        from matplotlib import pyplot

        if ax is None:
            _, ax = pyplot.subplots(figsize=(4.8, 3.2), layout="constrained")
        grid = np.arange(1, self.num_draws + 1) / (self.num_draws + 1)
        low, high = _band(len(self.ranks), grid, self.level)
        ax.fill_between(grid, low - grid, high - grid, color="0.85", linewidth=0, label=f"{1 - self.level:.0%} band")
        for i, u in enumerate(self.u.T):
            ecdf = (u[:, None] <= grid).mean(0)
            ax.plot(
                grid, ecdf - grid, color="#2f6fb2", alpha=0.75, linewidth=1.2, label="quantities" if i == 0 else None
            )
        ax.axhline(0, color="0.5", linewidth=0.8)
        ax.set(xlim=(0, 1), xlabel="rank / (L + 1)", ylabel="ECDF - uniform", title=self.shape)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, loc="upper right", fontsize="small")
        return ax


def _holm(p_values: list[float]) -> NDArray[np.float64]:
    """Return p-values adjusted so that the smallest of a family keeps its level."""
    p = np.asarray(p_values, dtype=float)
    order = p.argsort()
    adjusted = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    result = np.empty_like(p)
    result[order] = np.minimum(adjusted, 1)
    return result


def _band(sets: int, grid: NDArray[np.float64], level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return where the ECDF of so many uniform numbers lies at all points of a grid at once, with 1 - level."""
    from scipy import stats

    draws = np.random.default_rng(0).uniform(size=(2000, sets))
    counts = (np.sort(draws)[:, :, None] <= grid).sum(1)  # (2000, G)
    tails = np.minimum(stats.binom.cdf(counts, sets, grid), stats.binom.sf(counts - 1, sets, grid))
    pointwise = np.quantile(tails.min(1), level)  # the tail that one point in `level` of all curves crosses
    return stats.binom.ppf(pointwise, sets, grid) / sets, stats.binom.isf(pointwise, sets, grid) / sets


def sbc(
    model: Callable[..., Any],
    make_posterior: Callable[..., Any],
    x: Tensor,
    *,
    at: Tensor | None = None,
    quantity: Callable[[Values], Tensor] | None = None,
    together: bool = False,
    datasets: int = 100,
    draws: int = 99,
    level: float = 0.05,
    seed: int = 0,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> RankCheck:
    """
    Draw data sets from a program's prior, make a posterior of each, and rank the truth among its draws.

    :param model: any Pyro program `model(x, y=None)` with its observed site called `obs`.
    :param make_posterior: called with x, the drawn y and a seed; returns the posterior of them, by whatever method.
        With `together` it is called once, with x, a list of all y and one of all seeds, and returns a list.
    :param x: the inputs of every data set, (N, ...).
    :param at: the inputs at which predictions are compared; default the first five of x.
    :param quantity: in the place of predictions, numbers (Q,) of the latent values by site, e.g.
        `lambda w: w["slope"].reshape(-1)`.
    :param together: make the posteriors of all data sets in one call, as `fit_many` trains them in one program.
    :param datasets: M, how many data sets; 100 see a spread of 1.3, 1,000 one of 1.1.
    :param draws: L, independent draws of each posterior.
    :param level: the probability to call a right posterior wrong.
    :param seed: of the data sets, and of the posteriors of each.
    :param done: called with the number of data sets finished, and of all.

    >>> import torch
    >>> import pyro, pyro.distributions as dist
    >>> import pyro_bnn as pb
    >>> def model(x, y=None):
    ...     mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    ...     with pyro.plate("data", len(x)):
    ...         pyro.sample("obs", dist.Normal(mu, 1.0), obs=y)
    >>> def exact(x, y, seed):
    ...     sd = (1 + len(y)) ** -0.5
    ...     return pb.Posterior(model, lambda *args: pyro.sample("mu", dist.Normal(y.sum() * sd**2, sd)))
    >>> check = pb.sbc(model, exact, torch.zeros(4, 1), quantity=lambda w: w["mu"].reshape(1), datasets=50)
    >>> check.calibrated
    True
    """
    if datasets < 2 or draws < 2:
        raise ValueError(f"datasets={datasets}, draws={draws}: ranks need at least 2 of each")
    if not 0 < level < 1:
        raise ValueError(f"level={level} is not a probability of a false alarm: pass a number between 0 and 1")
    at = x[:5] if at is None else at
    seeds = [_seed(seed, i, 1) for i in range(datasets)]
    ranks = []
    with torch.random.fork_rng():
        drawn_sets = []
        for i in range(datasets):
            torch.manual_seed(_seed(seed, i, 0))
            drawn_sets.append(_simulate(model, x))
        made = list(make_posterior(x, [y for _, y in drawn_sets], seeds)) if together else None
        if made is not None and len(made) != datasets:
            raise ValueError(
                f"make_posterior returned {len(made)} posteriors for {datasets} data sets: return one each"
            )
        for i, (truth, y) in enumerate(drawn_sets):
            posterior = _checked(make_posterior(x, y, seeds[i]) if made is None else made[i])
            torch.manual_seed(_seed(seed, i, 2))
            if quantity is None:
                true = _predictions(Posterior(model, At(truth)), at, 1)
                drawn = _predictions(posterior, at, draws)
            else:
                true = quantity(truth).reshape(1, -1)
                drawn = _quantities(posterior, quantity, x, draws)
            below, equal = (drawn < true).sum(0), (drawn == true).sum(0)  # (Q,)
            ranks.append(below + (torch.rand(equal.shape) * (equal + 1)).long())
            done(i + 1, datasets)
    return RankCheck(torch.stack(ranks).cpu().numpy(), draws, seed, level)


def _checked(posterior: Any) -> Posterior:
    if not isinstance(posterior, Posterior):
        raise TypeError(
            f"make_posterior returned a {type(posterior).__name__}: return a pyro_bnn.Posterior, as "
            f"Posterior(model, guide) is"
        )
    return posterior


def _seed(seed: int, i: int, part: int) -> int:
    return int(np.random.SeedSequence([seed, i, part]).generate_state(1)[0])


def _simulate(model: Callable[..., Any], x: Tensor) -> tuple[Values, Tensor]:
    """Return latent values and targets from a program's prior."""
    with torch.no_grad(), poutine.block():
        sites = sample_sites(poutine.trace(model).get_trace(x))
    if "obs" not in sites:
        raise ValueError(
            f"the program has no site 'obs' that it draws when it is called with x alone (its sites are "
            f"{', '.join(sites)}): give pyro.sample('obs', ..., obs=y) with y=None"
        )
    values = {name: site["value"] for name, site in sites.items() if name != "obs" and not site["is_observed"]}
    return values, sites["obs"]["value"]


def _predictions(posterior: Posterior, at: Tensor, draws: int) -> Tensor:
    """Return noise-free predictions (S, Q); of classes all probabilities but the last, which follows from them."""
    drawn = posterior.draws(at, draws)
    if drawn.dim() == 3 and bool(torch.allclose(drawn.sum(-1), torch.ones(()), atol=1e-4)):
        drawn = drawn[..., :-1]
    return drawn.reshape(len(drawn), -1).double()


def _quantities(posterior: Posterior, quantity: Callable[[Values], Tensor], x: Tensor, draws: int) -> Tensor:
    """Return a quantity of the latent values of draws, (S, Q)."""
    with posterior.turn(x[:1]):
        contract_of(posterior.guide).restart()
        return torch.stack([quantity(draw_sites(posterior.guide, x)).reshape(-1) for _ in range(draws)])
