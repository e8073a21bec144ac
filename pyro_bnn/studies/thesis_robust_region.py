"""
The robust region of gradient descent with momentum (thesis, section 3.2, figure 3.1).

On a quadratic of curvature h a step of heavy ball is linear in (w_t, w_{t-1}), with the matrix

    [ 1 - alpha h + mu   -mu ]        trace T = 1 + mu - alpha h,   determinant mu,
    [        1             0 ]        eigenvalues z^2 - T z + mu = 0.

If T^2 <= 4 mu both eigenvalues have modulus sqrt(mu), whatever alpha and h are; else the larger is above it, since
their product is mu. And T^2 <= 4 mu is |1 + mu - alpha h| <= 2 sqrt(mu), that is

    (1 - sqrt(mu))^2 / h <= alpha <= (1 + sqrt(mu))^2 / h,                                                      (3.2.1)

both ends included. So for a given momentum the region is where the rate is best, and there it does not depend on alpha.

The thesis has (3.2.1) "in the convex case". That is too much: it holds for quadratics. Take the convex function with

    f'(w) = 25 w  for w < 1,     w + 24  for 1 <= w < 2,     25 w - 24  for w >= 2,

whose curvature is 1 or 25, at mu = 4/9 and alpha = 1/9, the only rate in the regions of both (an end of each). Heavy
ball then does not converge to w = 0: it runs into a cycle of three points (Lessard, Recht and Packard 2016), solved
here in fractions.

And two of the thesis' lines exclude each other: at mu = 0 the region for h = 2 is the single rate .5, which is above
the line alpha + .45 mu = .45 that figure 5.5 draws as the upper limit of stability; below mu = .0028 nothing is left.
"""

import itertools
from fractions import Fraction

import numpy as np
from scipy.optimize import brentq

from pyro_bnn.optim.torch_optim.yellowfin import robust_region
from pyro_bnn.studies.figures import Landscape, Line
from pyro_bnn.studies.findings import Finding, holds
from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["STUDY", "contraction", "convex", "cycle", "empty", "heavy_ball", "spectral_radius"]

_CURVATURES = (0.5, 1.0, 2.0, 8.0)
_MOMENTA = (0.01, 0.04, 0.25, 0.49, 0.81, 0.9801)
_PAIRS = tuple(itertools.product(_CURVATURES, _MOMENTA))
_EXACT = 1e-12
# a learning rate, as a multiple of the lower end, a share of the way through the region, a multiple of the upper end
_PLACES = {
    "half of the lower end": ("below", 0.5),
    "nine tenths of the lower end": ("below", 0.9),
    **{f"inside, {share:.0%} of the way": ("inside", share) for share in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)},
    "1.1 times the upper end": ("above", 1.1),
    "1.3 times the upper end": ("above", 1.3),
}


def spectral_radius(h: float, alpha: float, mu: float) -> float:
    """Return the largest modulus of an eigenvalue of heavy ball's step, by LAPACK in float64."""
    return float(np.abs(np.linalg.eigvals(np.array([[1 - alpha * h + mu, -mu], [1.0, 0.0]]))).max())


def contraction(place: str, *, seed: int) -> dict[str, float]:
    """Return the radius at a place of the region, over sqrt(mu) and less it; `seed` chooses curvature and momentum."""
    h, mu = _PAIRS[seed]
    low, high = robust_region(h, mu)
    root = mu**0.5
    kind, number = _PLACES[place]
    alpha = low + number * (high - low) if kind == "inside" else number * (low if kind == "below" else high)
    radius = spectral_radius(h, alpha, mu)
    return {"ratio": round(radius / root, 12), "more": radius - root}


def _slope(w: Fraction) -> Fraction:
    if w < 1:
        return 25 * w
    return w + 24 if w < 2 else 25 * w - 24


def cycle() -> tuple[Fraction, Fraction, Fraction]:
    """Return the points p, q, r of heavy ball's cycle with p >= 2 and q, r < 1, of alpha = 1/9 and mu = 4/9."""
    alpha, mu = Fraction(1, 9), Fraction(4, 9)
    # on each piece a step is linear, so that the three points solve three linear equations
    keep = 1 + mu - 25 * alpha
    # p -> q -> r -> p:  q = keep p + 24 alpha - mu r,  r = keep q - mu p,  p = keep r - mu q
    matrix = [[keep, Fraction(-1), -mu], [-mu, keep, Fraction(-1)], [Fraction(-1), -mu, keep]]
    p, q, r = _solved(matrix, [-24 * alpha, Fraction(0), Fraction(0)])
    return p, q, r


def _solved(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Solve three equations by Cramer's rule."""

    def determinant(m: list[list[Fraction]]) -> Fraction:
        (a, b, c), (d, e, f), (g, h, i) = m
        return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)

    whole = determinant(matrix)
    columns = [[[right[i] if j == k else matrix[i][j] for j in range(3)] for i in range(3)] for k in range(3)]
    return [determinant(column) / whole for column in columns]


def heavy_ball(w: Fraction, last: Fraction) -> Fraction:
    """Return the next point on the convex function, at alpha = 1/9 and mu = 4/9."""
    return w - Fraction(1, 9) * _slope(w) + Fraction(4, 9) * (w - last)


def convex(*, seed: int) -> dict[str, float]:
    """Return how far three steps lead from the cycle, and where float64 is after 3,000 steps from near it."""
    p, q, r = cycle()
    moved = max(abs(heavy_ball(p, r) - q), abs(heavy_ball(q, p) - r), abs(heavy_ball(r, q) - p))
    w, last = 3.3, 3.3
    for _ in range(3000):
        slope = 25 * w if w < 1 else w + 24 if w < 2 else 25 * w - 24
        w, last = w - slope / 9 + 4 / 9 * (w - last), w
    return {"moved": float(moved), "left": max(abs(w), abs(last))}


def empty(h: float, line: float, *, seed: int) -> dict[str, float]:
    """Return the momentum below which the region of h lies above the line alpha + a mu = a."""
    return {"below": float(brentq(lambda mu: robust_region(h, mu)[0] - line * (1 - mu), 0.0, 0.5, xtol=1e-15))}


def _design(scale: Scale) -> list[Trial]:
    here = "pyro_bnn.studies.thesis_robust_region"
    pairs = range(len(_PAIRS))
    return [
        *(Trial(p, i, compute=f"{here}:contraction", arguments={"place": p}) for p in _PLACES for i in pairs),
        Trial("convex", 0, compute=f"{here}:convex"),
        Trial("figure 5.5", 0, compute=f"{here}:empty", arguments={"h": 2.0, "line": 0.45}),
    ]


def _figures(results: Results) -> list[Landscape]:
    """Return the radius over rate and momentum at the curvature and with the line of figure 5.5."""
    h, line = 2.0, 0.45
    rates, momenta = np.arange(0.05, 2.0, 0.1), np.arange(0.025, 1.0, 0.05)
    points = [(float(a), float(m), spectral_radius(h, float(a), float(m))) for m in momenta for a in rates]
    ends = [robust_region(h, float(m)) for m in momenta]
    return [
        Landscape(
            f"Curvature {h:g}",
            "learning rate",
            "momentum",
            "spectral radius",
            points,
            [
                Line("lower end of the region", [low for low, _ in ends], momenta),
                Line("upper end", [high for _, high in ends], momenta),
                Line(f"rate / (1 - mu) = {line:g}, the source's", line * (1 - momenta), momenta, reference=True),
            ],
        )
    ]


def _judge(results: Results) -> list[Finding]:
    inside = [results.values(place, "more") for place, (kind, _) in _PLACES.items() if kind == "inside"]
    outside = [results.values(place, "more") for place, (kind, _) in _PLACES.items() if kind != "inside"]
    furthest, above = float(np.abs(inside).max()), float(np.min(outside))
    left, below = results.values("convex", "left")[0], results.values("figure 5.5", "below")[0]
    return [
        holds("quadratics: the radius less sqrt(mu) inside the region, at most", furthest, 0.0, _EXACT),
        holds("quadratics: 1 if the radius is above sqrt(mu) everywhere outside", float(above > _EXACT), 1.0, 0.0),
        holds("a convex function: |w| after 3,000 steps inside both regions is 0", left, 0.0, _EXACT, decides=False),
        holds("figure 5.5: the region lies under the line from mu = 0 on", below, 0.0, 1e-3, decides=False),
    ]


STUDY = Study(
    name="thesis-robust-region",
    claim="Gradient descent with momentum mu converges at the best rate, sqrt(mu), if and only if "
    "(1 - sqrt(mu))^2 / h <= alpha <= (1 + sqrt(mu))^2 / h: true for quadratics of curvature h.",
    source="Training Bayesian Neural Networks (MSc thesis, Lund 2020)",
    place="section 3.2, equation (3.2.1), figure 3.1",
    varied="the learning rate, at 24 pairs of curvature and momentum.",
    measured="the spectral radius of a step, in float64.",
    rule="Confirmed if inside the region the radius is sqrt(mu) to within 1e-12, and outside above it.",
    not_done="Nothing: it is exact. That the source says it of all convex functions is refuted beside it.",
    design=_design,
    judge=_judge,
    figures=_figures,
    metric=("ratio", "spectral radius / sqrt(mu), by where the learning rate lies"),
    scales=("smoke", "source"),
    explained='The source has the region "in the convex case"; a convex function with curvatures 1 and 25 on which '
    "heavy ball cycles for ever, inside both regions, shows that it is so for quadratics only.",
)
