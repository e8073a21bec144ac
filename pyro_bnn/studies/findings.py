"""
The rules of a verdict, over paired differences d_1 ... d_n of seeds (SciPy's t statistics).

    more     the claim is E d > 0:  confirmed if the 95 % interval of the mean lies above 0, contradicted if below
    equal    the claim is |E d| < m for a margin m fixed beforehand (two one-sided tests): confirmed if the 90 %
             interval lies within (-m, m), contradicted if it lies outside, or leaves out 0 and reaches beyond m
    holds    the claim is a number: confirmed within a tolerance, contradicted without; no chance is involved

What is neither is inconclusive. A trial that diverged has no number: its pair is left out of `more` and `equal`, and
the outcome says so; with fewer than three pairs left, or no spread beyond rounding in fewer than five, they are
inconclusive.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = ["Finding", "Verdict", "equal", "holds", "holm", "likely", "more", "verdict_of"]

Verdict: TypeAlias = Literal["confirmed", "contradicted", "inconclusive"]

_LEVEL = 0.05
_LEAST = 3
_LEAST_ALIKE = 5
_ROUNDING = 1e-12
"""Relative to the largest difference: what is closer together is one number, computed in several orders."""


@final
@dataclass(frozen=True)
class Finding:
    """One statement and what was found: the estimate, its interval, the p-value of the statement's opposite."""

    statement: str
    verdict: Verdict
    estimate: float
    low: float
    high: float
    p: float | None
    pairs: int
    margin: float | None = None
    decides: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {key: _plain(value) for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Finding":
        """Undo `to_dict`."""
        numbers: Any = {
            key: math.nan if value is None and key in ("estimate", "low", "high") else value
            for key, value in values.items()
        }
        return cls(**numbers)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    d: NDArray[np.float64] = np.asarray(differences, dtype=float)
    finite: NDArray[np.float64] = d[np.isfinite(d)]
    return finite


def _alike(d: NDArray[np.float64]) -> bool:
    """Whether the differences have no spread of their own, so that there is no t statistic."""
    return float(np.ptp(d)) <= _ROUNDING * float(np.abs(d).max())


def _too_few(d: NDArray[np.float64]) -> bool:
    return len(d) < _LEAST or (len(d) < _LEAST_ALIKE and _alike(d))


def _unclear(statement: str, d: NDArray[np.float64], margin: float | None, decides: bool) -> Finding:
    mean = float(d.mean()) if len(d) else math.nan
    return Finding(statement, "inconclusive", mean, math.nan, math.nan, None, len(d), margin, decides)


def more(statement: str, differences: NDArray[np.float64], *, decides: bool = True) -> Finding:
    """Test the claim that the mean of paired differences is above 0."""
    d = _finite(differences)
    if _too_few(d):
        return _unclear(statement, d, None, decides)
    if _alike(d):
        low = high = float(d.mean())
        p = 0.0 if low > 0 else 1.0
    else:
        test = stats.ttest_1samp(d, 0.0)
        interval = test.confidence_interval(1 - _LEVEL)
        low, high = float(interval.low), float(interval.high)
        p = float(stats.ttest_1samp(d, 0.0, alternative="greater").pvalue)
    verdict: Verdict = "confirmed" if low > 0 else "contradicted" if high < 0 else "inconclusive"
    return Finding(statement, verdict, float(d.mean()), low, high, p, len(d), None, decides)


def equal(statement: str, differences: NDArray[np.float64], margin: float, *, decides: bool = True) -> Finding:
    """Test the claim that the mean of paired differences is within `margin` of 0, by two one-sided tests."""
    if not margin > 0:
        raise ValueError(f"margin={margin} is not a margin: pass a number above 0")
    d = _finite(differences)
    if _too_few(d):
        return _unclear(statement, d, margin, decides)
    if _alike(d):
        low = high = float(d.mean())
        p = 0.0 if abs(low) < margin else 1.0
    else:
        above = stats.ttest_1samp(d, -margin, alternative="greater")
        below = stats.ttest_1samp(d, margin, alternative="less")
        interval = stats.ttest_1samp(d, 0.0).confidence_interval(1 - 2 * _LEVEL)
        low, high, p = float(interval.low), float(interval.high), float(max(above.pvalue, below.pvalue))
    verdict: Verdict = "inconclusive"
    if -margin < low and high < margin:
        verdict = "confirmed"
    elif low > margin or high < -margin or (low > 0 and high > margin) or (high < 0 and low < -margin):
        verdict = "contradicted"
    return Finding(statement, verdict, float(d.mean()), low, high, p, len(d), margin, decides)


def holds(statement: str, value: float, target: float, tolerance: float, *, decides: bool = True) -> Finding:
    """Test the claim that a number is `target`, where no chance is involved."""
    within = math.isfinite(value) and abs(value - target) <= tolerance
    return Finding(
        statement, "confirmed" if within else "contradicted", value, value, value, None, 0, tolerance, decides
    )


def likely(statement: str, resampled: NDArray[np.float64], *, decides: bool = True) -> Finding:
    """Test the claim that a statistic is above 0 by its bootstrap distribution (the percentile interval)."""
    values = _finite(resampled)
    if len(values) < 100:
        return _unclear(statement, values, None, decides)
    low, high = (float(q) for q in np.quantile(values, [_LEVEL / 2, 1 - _LEVEL / 2]))
    verdict: Verdict = "confirmed" if low > 0 else "contradicted" if high < 0 else "inconclusive"
    p = float((np.sum(values <= 0) + 1) / (len(values) + 1))
    return Finding(statement, verdict, float(np.median(values)), low, high, p, 0, None, decides)


def verdict_of(findings: Sequence[Finding]) -> Verdict:
    """Return the verdict on a claim: confirmed if all that it says is, contradicted if any of it is."""
    deciding = [finding.verdict for finding in findings if finding.decides]
    if not deciding:
        raise ValueError("no finding decides: at least one must")
    if "contradicted" in deciding:
        return "contradicted"
    return "confirmed" if set(deciding) == {"confirmed"} else "inconclusive"


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979): p_(i) -> max over j <= i of (n - j + 1) p_(j)."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)) if len(p) else p
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(raised, 1.0)
    return [float(value) for value in adjusted]
