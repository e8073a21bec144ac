"""
From a penalty to the prior that it implies, by deconvolution.

Variational inference minimises E_beta[-ln p(y|x, w)] + KL(beta || alpha); ordinary training minimises
-ln p(y|x, w) + r(w). With beta(w) = beta_{0,nu}(w - mu), a translation-invariant family of mean mu and scale nu, and a
penalty r_nu(mu) on its parameters, the two are one objective exactly if r = KL(beta || alpha) + K for all (mu, nu).

Theorem (Wolinski, Charpiat and Ollivier, An equivalence between Bayesian priors and penalties in variational
inference, 2022). Let beta_check(w) = beta_{0,nu}(-w) and F the Fourier transform. Such an alpha exists if and only if

    A = -Ent(beta_{0,nu}) - F^-1[ F r_nu / F beta_check ]

does not depend on nu and kappa = integral exp(A) is finite. Then alpha = exp(A) / kappa and K = -ln kappa.

Gaussian family, beta = N(mu, s^2):   F beta = exp(-s^2 omega^2 / 2),   Ent = ln(2 pi e s^2) / 2. A quadratic penalty is
solved in closed form; `rules.py` has the condition on it.
Dirac family (s = 0, a point estimate):   alpha = exp(-r) / kappa; the entropy is dropped.

Deconvolution of a general r. It multiplies the spectrum by exp(s^2 omega^2 / 2), so nothing may be left to it that has
an exact answer. (1) Polynomials and their one-sided companions sgn(mu) mu^k are fitted to the tails. The one-sided ones
are used after convolution with N(0, t^2), t^2 = 2 s^2; deconvolving by s turns each into itself at t^2 - s^2, and
moves a polynomial backwards along the heat flow. (2) The residual is tapered far outside the region that holds the
prior's mass by an error function of width 4 s; being analytic, the taper leaves the region untouched. (3) The spectrum
of what is left is divided up to a cut-off of 3 to 5 over s: where the residual's spectrum meets its own noise floor.
Accuracy is judged by what it does to the prior: doubling the grid and moving the cut-off by 1 / s.

Departures. The printed definition omits the reflection; K is not given there. On its own r = lambda mu^2 makes A depend
on s: it has a prior for one fixed s, not for a trained one. For a Gaussian family |mu| and group norms have no prior at
all: convolution with a Gaussian is analytic, and they are not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_bnn.models.penalty_priors import TabulatedDensity
from pyro_bnn.penalties.densities import l1_distance, log_integral, mass_of_pieces, normal_entropy, over_tensor
from pyro_bnn.penalties.rules import L1, L2, Penalty, QuadraticPenalty, VariationalPenalty

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "DependsOnScaleError",
    "ImpliedPrior",
    "NoPriorError",
    "NotIntegrableError",
    "SpectrumGrowsError",
    "UnstableDeconvolutionError",
    "implied_prior",
    "plot_equivalence",
    "prior_from_penalty",
]


class NoPriorError(ValueError):
    """No prior is equivalent to this penalty, or none can be computed."""


@final
class DependsOnScaleError(NoPriorError):
    """The first condition fails: A depends on nu."""


@final
class NotIntegrableError(NoPriorError):
    """The second condition fails: exp(A) has no finite integral."""


@final
class SpectrumGrowsError(NoPriorError):
    """F r / F beta_check grows: it is the transform of no function A."""


@final
class UnstableDeconvolutionError(NoPriorError):
    """The computed prior moves with the grid or the cut-off by more than the tolerance."""


@final
@dataclass(frozen=True)
class ImpliedPrior:
    """
    The solution of r = KL(beta || prior) + K for one weight.

    :param prior: alpha, a Pyro distribution.
    :param variational_sd: the scales it was solved for; (0,) is the Dirac family.
    :param points: where `penalty` and `A` are given, (G,).
    :param penalty: r at each scale, (number of scales, G).
    :param A: the unnormalised log prior, (G,).
    :param log_kappa: log of the integral of exp(A).
    :param cutoff: times 1 / sd the highest frequency used, for each scale; empty in closed form.
    :param change: the largest L1 change of the prior under a doubled grid and a moved cut-off; for the Dirac family
        under a doubled table; 0 in closed form.
    """

    prior: Distribution
    variational_sd: tuple[float, ...]
    points: Tensor
    penalty: Tensor
    A: Tensor
    log_kappa: float
    cutoff: tuple[float, ...] = ()
    change: float = 0.0

    @property
    def constant(self) -> float:
        """K = -ln kappa in r = KL(beta || prior) + K."""
        return -self.log_kappa


def implied_prior(
    penalty: Penalty | VariationalPenalty, variational_sd: float | Sequence[float], *, tolerance: float = 1e-3
) -> ImpliedPrior:
    """
    Solve r(mu, sd) = KL(N(mu, sd^2) || prior) + K for the prior of one weight.

    :param penalty: L1, L2, or a function r(mu, sd), elementwise in mu and in float64.
    :param variational_sd: the scale of the family; several for one that trains it; 0 for a point estimate.
    :param tolerance: largest L1 change of the prior accepted from the grid, the cut-off and the scale.
    :raises NoPriorError: a subclass names the condition that fails.
    """
    sds = _scales(variational_sd)
    if not tolerance > 0:
        raise ValueError(f"tolerance={tolerance} is not allowed: pass a number above 0, such as 1e-3")
    r = _of_one_weight(penalty, sds)
    if isinstance(r, QuadraticPenalty):
        return _solve_quadratic(r, sds)
    if sds != (0.0,):
        return _deconvolve(r, sds, tolerance)
    solution = _solve_dirac(r, tolerance)
    if isinstance(penalty, Penalty):
        return replace(solution, prior=penalty.prior(solution.points.new_zeros(())))
    return solution


def prior_from_penalty(
    penalty: Penalty | VariationalPenalty,
    variational_sd: float | Sequence[float],
    *,
    shape: tuple[int, ...] = (),
    tolerance: float = 1e-3,
) -> Distribution:
    """
    Return the prior that makes training with `penalty` variational inference.

    :param penalty: L1, L2, GroupLasso, or a function r(mu, sd) of one weight.
    :param variational_sd: the scale of the Gaussian family; several for one that trains it; 0 for a point estimate.
    :param shape: event shape of the result: () for one weight, or that of a layer's weight.
    :param tolerance: see :func:`implied_prior`.
    :raises NoPriorError: a subclass names the condition that fails.
    """
    like = torch.zeros(shape, dtype=torch.float64)
    if isinstance(penalty, Penalty) and _scales(variational_sd) == (0.0,):
        return penalty.prior(like)
    prior = implied_prior(penalty, variational_sd, tolerance=tolerance).prior
    return over_tensor(prior, like)


def _scales(variational_sd: float | Sequence[float]) -> tuple[float, ...]:
    sds = (float(variational_sd),) if isinstance(variational_sd, (int, float)) else tuple(map(float, variational_sd))
    dirac = sds == (0.0,)
    if not sds or not (dirac or all(math.isfinite(sd) and sd > 0 for sd in sds)):
        raise ValueError(
            f"variational_sd={variational_sd} is no scale: pass a number above 0, several of them for a family whose "
            f"scale is trained, or 0 for a point estimate"
        )
    return sds


def _of_one_weight(penalty: Penalty | VariationalPenalty, sds: tuple[float, ...]) -> VariationalPenalty:
    match penalty:
        case L2(weight=weight):
            return QuadraticPenalty(a=lambda v: 0.0, b=lambda v: weight)
        case L1(weight=weight):
            return lambda mu, sd: weight * mu.abs()
        case Penalty() if sds == (0.0,):
            raise TypeError(f"{penalty} acts on groups, not on one weight: use prior_from_penalty(..., 0.0, shape=...)")
        case Penalty():
            raise SpectrumGrowsError(
                f"{penalty} with a Gaussian family: the spectrum of a group norm over that of the family, "
                f"|omega|^-(D+1) exp(sd^2 |omega|^2 / 2), grows, so no prior exists; use variational_sd=0, a point "
                f"estimate"
            )
    if not callable(penalty):
        raise TypeError(f"penalty is a {type(penalty).__name__}: pass a Penalty or a function r(mu, sd)")
    return penalty


# -- a Gaussian family ------------------------------------------------------------------------------------------------


_DEPTH = 35.0  # nats above its minimum to which the penalty is followed: the prior's mass beyond is about exp(-35)
_SIGNAL = 6.0  # a frequency carries signal if it stands this far above the noise floor
_MAX_POINTS = 2**20
_FINEST = 1e-300
_POWERS = (0, 1, 2, 3, 4)
_ONE_SIDED = (0, 1, 2)


def _solve_quadratic(penalty: QuadraticPenalty, sds: tuple[float, ...]) -> ImpliedPrior:
    b = [penalty.b(sd**2) for sd in sds]
    if not b[0] > 0:
        raise NotIntegrableError(f"exp(A) does not integrate: b={b[0]:g} at sd {sds[0]:g}; b must be above 0")
    variance = 1 / (2 * b[0])
    entropies = [0.5 * math.log(2 * math.pi * math.e * sd**2) if sd > 0 else 0.0 for sd in sds]
    tops = [b_ * sd**2 - penalty.a(sd**2) - h for b_, sd, h in zip(b, sds, entropies, strict=True)]  # A at 0
    if not math.isfinite(tops[0]):
        raise NotIntegrableError(f"exp(A) does not integrate: a is {penalty.a(sds[0] ** 2)} at sd {sds[0]:g}")
    for sd, b_, top in zip(sds[1:], b[1:], tops[1:], strict=True):
        if not math.isclose(b_, b[0], rel_tol=1e-9) or not math.isclose(top, tops[0], rel_tol=1e-9, abs_tol=1e-9):
            raise DependsOnScaleError(
                f"A(mu) = {tops[0]:.6g} - {b[0]:.6g} mu^2 at sd {sds[0]:g} but {top:.6g} - {b_:.6g} mu^2 at sd {sd:g}: "
                f"it depends on nu; take a(s^2) = [s^2/s0^2 + ln(s0^2/s^2) - 1] / 2 and b = 1 / (2 s0^2) as in "
                f"gaussian_penalty(s0), or hold sd fixed"
            )
    scale = math.sqrt(variance)
    points = scale * torch.linspace(-8, 8, 2001, dtype=torch.float64)
    return ImpliedPrior(
        prior=dist.Normal(torch.zeros((), dtype=torch.float64), torch.tensor(scale, dtype=torch.float64)),
        variational_sd=sds,
        points=points,
        penalty=torch.stack([penalty(points, sd) for sd in sds]),
        A=tops[0] - b[0] * points.square(),
        log_kappa=tops[0] + 0.5 * math.log(2 * math.pi * variance),
    )


def _deconvolve(penalty: VariationalPenalty, sds: tuple[float, ...], tolerance: float) -> ImpliedPrior:
    coarse = _lay_grid(penalty, sds)
    fine = _doubled(coarse)
    inside = fine.inside
    solutions: list[Tensor] = []
    problems: list[_Problem] = []
    change = 0.0
    for sd in sds:
        problem = _pose(_evaluate(penalty, fine.points, sd), sd, fine)
        outer, inner = problem.band(5, 6), problem.band(4, 5)
        if outer > inner > tolerance:
            raise SpectrumGrowsError(
                f"the spectrum of r over that of N(0, {sd:g}^2) grows: {inner:.3g} between 4 and 5 over sd, "
                f"{outer:.3g} between 5 and 6; r is less smooth than any function convolved with the family, so no "
                f"prior exists; use variational_sd=0 for a point estimate, or penalty_from_prior for the KL to a prior"
            )
        cutoff = problem.cutoff
        A = problem.A(cutoff)
        on_coarse = inside[::2]
        reference = A[::2][on_coarse]
        by_grid = l1_distance(reference, _pose(problem.values[::2], sd, coarse).A(cutoff)[on_coarse], coarse.step)
        by_cutoff = l1_distance(reference, problem.A(cutoff + 1)[::2][on_coarse], coarse.step)
        if not max(by_grid, by_cutoff) <= tolerance:
            raise UnstableDeconvolutionError(
                f"at variational_sd {sd:g} the prior moves by {by_grid:.2g} (L1) when the grid is doubled and by "
                f"{by_cutoff:.2g} when the cut-off moves from {cutoff:.1f} to {cutoff + 1:.1f} over sd "
                f"(tolerance {tolerance:g}): it has features narrower than sd, or r is inaccurate; try a smaller sd"
            )
        change = max(change, by_grid, by_cutoff)
        problems.append(problem)
        solutions.append(A[inside])
    A = solutions[0]
    log_kappa = log_integral(A, fine.step)
    if max(A[0].item(), A[-1].item()) > A.max().item() - _DEPTH / 3 or not (A[1] > A[0] and A[-2] > A[-1]):
        raise NotIntegrableError("exp(A) does not integrate: A does not fall towards both ends of the region")
    alpha = torch.exp(A - log_kappa)
    for sd, other in zip(sds[1:], solutions[1:], strict=True):
        level = (alpha * (other - A)).sum().item() * fine.step
        shape = l1_distance(A, other, fine.step)
        if max(abs(level), shape) > tolerance:
            raise DependsOnScaleError(
                f"A depends on nu: from sd {sds[0]:g} to {sd:g} its level moves by {level:.3g} and the prior by "
                f"{shape:.3g} (L1), tolerance {tolerance:g}; r must change with sd as a KL does, or sd be held fixed"
            )
    return ImpliedPrior(
        prior=TabulatedDensity(fine.points[inside], A),
        variational_sd=sds,
        points=fine.points[inside],
        penalty=torch.stack([p.values[inside] for p in problems]),
        A=A,
        log_kappa=log_kappa.item(),
        cutoff=tuple(p.cutoff for p in problems),
        change=change,
    )


def _heat_polynomial(x: Tensor, power: int, variance: float) -> Tensor:
    """E (x + sqrt(variance) z)^power; a negative variance runs the heat flow backwards."""
    terms = [
        math.comb(power, 2 * j) * math.prod(range(1, 2 * j, 2)) * variance**j * x ** (power - 2 * j)
        for j in range(power // 2 + 1)
    ]
    return torch.stack(terms).sum(0)


def _heat_one_sided(x: Tensor, power: int, variance: float) -> Tensor:
    """E sgn(y) y^power with y = x + sqrt(variance) z, for power 0, 1, 2."""
    sd = math.sqrt(variance)
    erf = torch.erf(x / (sd * math.sqrt(2)))
    if power == 0:
        return erf
    bell = sd * math.sqrt(2 / math.pi) * torch.exp(-x.square() / (2 * variance))
    return x * erf + bell if power == 1 else (x.square() + variance) * erf + x * bell


@final
@dataclass(frozen=True)
class _Grid:
    """Equidistant points (M,), the region that holds the prior's mass and the width of the taper outside it."""

    points: Tensor
    step: float
    low: float
    high: float
    taper: float

    @property
    def inside(self) -> Tensor:
        return (self.points >= self.low) & (self.points <= self.high)

    @property
    def window(self) -> Tensor:
        """1 to rounding inside, 0 to rounding at the ends; (M,)."""
        left = torch.erf((self.points - self.low) / self.taper + 6)
        right = torch.erf((self.points - self.high) / self.taper - 6)
        return (left - right) / 2


def _evaluate(penalty: VariationalPenalty, points: Tensor, sd: float) -> Tensor:
    values = torch.as_tensor(penalty(points, sd), dtype=torch.float64).detach()
    if values.shape != points.shape:
        raise ValueError(
            f"the penalty returns shape {tuple(values.shape)} for means of shape {tuple(points.shape)}: it must be a "
            f"function of one weight, elementwise in mu"
        )
    if bool(values.isnan().any()) or bool((values == -math.inf).any()):
        raise NotIntegrableError("the penalty is nan or -inf somewhere, so exp(A) is no density: make it finite")
    return values


def _region(penalty: VariationalPenalty, sd: float) -> tuple[float, float]:
    """Return the interval outside which the penalty exceeds its minimum by more than `_DEPTH`."""
    unit = sd if sd > 0 else 1.0
    steps = unit * 2.0 ** (torch.arange(-80, 141, dtype=torch.float64) / 4)  # up to 2^35 units
    points = torch.cat([-steps.flip(0), steps.new_zeros(1), steps])
    for _ in range(60):
        values = _evaluate(penalty, points, sd)
        below = (values <= values.min() + _DEPTH).nonzero().flatten()
        first, last = int(below[0]), int(below[-1])
        if first == 0 or last == len(points) - 1:
            raise NotIntegrableError(
                f"exp(A) does not integrate: the penalty stays within {_DEPTH:g} nats of its minimum out to "
                f"mu={points[first if first == 0 else last].item():.3g}; it must grow faster than ln|mu| on both sides"
            )
        low, high = points[first - 1].item(), points[last + 1].item()
        if last - first > 1000:
            break
        points = torch.linspace(low - (high - low) / 2, high + (high - low) / 2, 8001, dtype=torch.float64)
    return low, high


def _lay_grid(penalty: VariationalPenalty, sds: Sequence[float]) -> _Grid:
    regions = [_region(penalty, sd) for sd in sds]
    low, high = min(r[0] for r in regions), max(r[1] for r in regions)
    taper = 4 * max(sds)
    width = high - low + 24 * taper  # the taper is 1 to rounding 6 widths inside its edge, and 0 6 widths outside
    finest = min(min(sds) / 16, (high - low) / 1024)
    number = 2 ** math.ceil(math.log2(width / finest))
    if number > _MAX_POINTS:
        raise UnstableDeconvolutionError(
            f"the penalty spreads over [{low:.3g}, {high:.3g}], which takes {number} points at variational_sd "
            f"{min(sds):g}, more than {_MAX_POINTS}: its tails are too heavy or the scale too small; for a point "
            f"estimate pass variational_sd=0"
        )
    step = width / number
    points = low - 12 * taper + step * torch.arange(number, dtype=torch.float64)
    return _Grid(points, step, low, high, taper)


def _doubled(grid: _Grid) -> _Grid:
    points = grid.points[0] + grid.step / 2 * torch.arange(2 * len(grid.points), dtype=torch.float64)
    return _Grid(points, grid.step / 2, grid.low, grid.high, grid.taper)


@final
@dataclass(frozen=True)
class _Problem:
    """
    The deconvolution of one r at one scale, up to the choice of a cut-off.

    :param values: r on the grid, (M,).
    :param tails: the exact deconvolution of the fitted tails, (M,).
    :param frequencies: s omega, (M / 2 + 1,).
    :param spectrum: transform of the tapered residual, (M / 2 + 1,).
    :param floor: noise level of `spectrum`.
    """

    grid: _Grid
    sd: float
    values: Tensor
    tails: Tensor
    frequencies: Tensor
    spectrum: Tensor
    floor: float

    @property
    def cutoff(self) -> float:
        """The last frequency below 5 that stands above the noise, at least 3."""
        signal = (self.spectrum.abs() > _SIGNAL * self.floor) & (self.frequencies <= 5)
        return max(3.0, self.frequencies[signal].max().item()) if bool(signal.any()) else 3.0

    def band(self, low: float, high: float) -> float:
        """Bound on what the signal between two frequencies adds to A."""
        f = self.frequencies
        chosen = (f >= low) & (f < high) & (self.spectrum.abs() > _SIGNAL * self.floor)
        spacing = (f[1] - f[0]).item() / self.sd
        return (self.spectrum.abs() * torch.exp(f.square() / 2))[chosen].sum().item() * spacing / math.pi

    def A(self, cutoff: float) -> Tensor:
        """-Ent - F^-1[F r / F beta] with the spectrum cut at `cutoff`; (M,)."""
        gain = torch.where(self.frequencies <= cutoff, torch.exp(self.frequencies.clamp(max=cutoff).square() / 2), 0.0)
        rest: Tensor = torch.fft.irfft(self.spectrum * gain, n=len(self.values)) / self.grid.step
        return -normal_entropy(torch.tensor(self.sd, dtype=torch.float64)) - self.tails - rest


def _pose(values: Tensor, sd: float, grid: _Grid) -> _Problem:
    """Fit the tails of r, take them out with their exact deconvolution, transform the rest."""
    if not bool(values.isfinite().all()):
        raise UnstableDeconvolutionError(
            f"the penalty overflows within {12 * grid.taper:.3g} of the region of the prior's mass: it grows too fast"
        )
    centre, unit = (grid.points[0] + grid.points[-1]).item() / 2, (grid.points[-1] - grid.points[0]).item() / 2
    u, variance = (grid.points - centre) / unit, (sd / unit) ** 2
    basis = torch.stack(
        [_heat_polynomial(u, k, 0.0) for k in _POWERS] + [_heat_one_sided(u, k, 2 * variance) for k in _ONE_SIDED], 1
    )  # (M, 8)
    deconvolved = torch.stack(
        [_heat_polynomial(u, k, -variance) for k in _POWERS] + [_heat_one_sided(u, k, variance) for k in _ONE_SIDED], 1
    )  # (M, 8)
    outer = u.abs() > 0.5
    coefficients = torch.linalg.lstsq(basis[outer], values[outer]).solution  # (8,)
    residual = (values - basis @ coefficients) * grid.window
    spectrum = torch.fft.rfft(residual) * grid.step
    frequencies = sd * 2 * math.pi * torch.fft.rfftfreq(len(u), grid.step, dtype=torch.float64)
    highest = spectrum[-len(spectrum) // 4 :].abs().square().mean().sqrt().item()
    rounding = torch.finfo(torch.float64).eps * values.abs().max().item() * grid.step * math.sqrt(len(u))
    return _Problem(grid, sd, values, deconvolved @ coefficients, frequencies, spectrum, max(highest, rounding))


# -- a point estimate -------------------------------------------------------------------------------------------------


def _solve_dirac(penalty: VariationalPenalty, tolerance: float) -> ImpliedPrior:
    """
    Tabulate -r, halving the pieces in which exp(-r) is not yet the exponential through their ends.

    Between the ends of a piece its halves lie above or below it, so the change of their mass is the L1 change of the
    density. Pieces are halved where that is large, which follows cusps down to where they have no mass, until all
    changes together are a tenth of the tolerance.
    """
    low, high = _region(penalty, 0.0)
    near = 2.0 ** (torch.arange(-80, 141, dtype=torch.float64) / 4)  # where _region looks, too
    near = torch.cat([-near, near.new_zeros(1), near])
    points = torch.cat([torch.linspace(low, high, 2**14 + 1, dtype=torch.float64), near[(near > low) & (near < high)]])
    points = torch.unique(points)
    values = _finite(penalty, points)
    while True:
        middle = points[:-1] + points.diff() / 2
        between = _finite(penalty, middle)
        lowest = min(values.min(), between.min())
        whole = mass_of_pieces(points.diff(), lowest - values[:-1], lowest - values[1:])
        halves = mass_of_pieces(middle - points[:-1], lowest - values[:-1], lowest - between)
        halves = halves + mass_of_pieces(points[1:] - middle, lowest - between, lowest - values[1:])
        changes = (halves - whole).abs() / halves.sum()
        change = float(changes.sum())
        coarse = changes > tolerance / 20 / len(changes)
        if change <= tolerance / 10:
            break
        if len(points) + int(coarse.sum()) > _MAX_POINTS or bool((points.diff()[coarse] < _FINEST).any()):
            raise UnstableDeconvolutionError(
                f"the prior still changes by {change:.2g} (L1) when its table of {len(points)} points is refined: the "
                f"penalty is too rough for tolerance={tolerance:g}; raise it"
            )
        points, order = torch.cat([points, middle[coarse]]).sort()
        values = torch.cat([values, between[coarse]])[order]
    prior = TabulatedDensity(points, -values)
    return ImpliedPrior(prior, (0.0,), points, values[None], -values, prior.log_normalizer.item(), change=change)


def _finite(penalty: VariationalPenalty, points: Tensor) -> Tensor:
    values = _evaluate(penalty, points, 0.0)
    if bool(values.isinf().any()):
        raise NoPriorError(
            f"the penalty is infinite at mu={float(points[values.isinf()][0]):.3g}, and a prior without any mass there "
            "has no logarithm to tabulate: make the penalty finite"
        )
    return values


# -- plot -------------------------------------------------------------------------------------------------------------


_COLOURS = ("#1f5a94", "#d1642c", "#3d8c5f", "#8a5aa8", "#b3903a")
_INK = "#333333"


def plot_equivalence(solution: ImpliedPrior, title: str | None = None) -> "Figure":
    """
    Draw the penalty at each scale, A and the prior side by side, over the region that holds the prior's mass.

    :param solution: what `implied_prior` returned.
    :param title: of the picture.
    """
    from matplotlib.figure import Figure

    density = torch.exp(solution.A - solution.log_kappa)
    shown = (density > 1e-4 * density.max()).nonzero().flatten()
    view = slice(int(shown[0]), int(shown[-1]) + 1)
    x = solution.points[view].numpy()
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for i, (sd, r) in enumerate(zip(solution.variational_sd, solution.penalty, strict=True)):
        label = rf"$\sigma = {sd:g}$" if sd > 0 else "point estimate"
        left.plot(x, r[view].numpy(), color=_COLOURS[i % len(_COLOURS)], lw=1.8, label=label)
    left.legend(frameon=False, labelcolor=_INK)
    left.set_title(r"Penalty $r_\sigma(\mu)$, nats", loc="left", color=_INK)
    left.set_xlabel(r"$\mu$")
    middle.plot(x, solution.A[view].numpy(), color=_INK, lw=1.8)
    middle.set_title(r"$A = \ln\alpha + \ln\kappa$, nats", loc="left", color=_INK)
    right.plot(x, density[view].numpy(), color=_COLOURS[0], lw=1.8)
    right.fill_between(x, density[view].numpy(), color=_COLOURS[0], alpha=0.15, lw=0)
    right.set_ylim(bottom=0)
    right.set_title(rf"Prior $\alpha$ ($K = {round(solution.constant, 3) + 0.0:g}$)", loc="left", color=_INK)
    for axes in (left, middle, right):
        axes.margins(x=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#999999")
        axes.tick_params(colors=_INK, length=3)
        axes.grid(color="#e6e6e6", lw=0.6)
        axes.set_axisbelow(True)
    for axes in (middle, right):
        axes.set_xlabel(r"$w$")
    if title is not None:
        figure.suptitle(title, x=0.01, ha="left", color=_INK, fontweight="bold")
    return figure
