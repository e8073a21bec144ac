"""
Mean and variance of values that come one after the other, in one pass.

With d = x_n - m_(n-1):    m_n = m_(n-1) + d / n,    s_n = s_(n-1) + d (x_n - m_n),    variance = s_n / (n - correction)

One infinite number among numbers makes the mean infinite, and the variance.

Reference: Welford 1962.
"""

import math
from typing import Any, Generic, TypeVar, cast, final

from torch import Tensor

__all__ = ["Welford"]

Value = TypeVar("Value", float, Tensor)


@final
class Welford(Generic[Value]):
    """
    The running mean and sum of squared deviations of numbers, or of tensors of one shape, element by element.

    :param zero: 0 like the values, for who reads before the first one; default the number.
    """

    def __init__(self, zero: Value | None = None) -> None:
        start: Any = 0.0 if zero is None else zero
        self.count = 0
        self.mean: Value = start
        self.spread: Value = start

    def update(self, value: Value) -> None:
        """Take a value."""
        self.count += 1
        new: Any = value
        mean: Any = self.mean
        spread: Any = self.spread
        if isinstance(new, float) and (math.isinf(new) or math.isinf(mean)):
            self.mean, self.spread = mean + new, cast(Any, math.inf)
            return
        delta = new - mean
        self.mean = mean + delta / self.count
        self.spread = spread + delta * (new - cast(Any, self.mean))

    def variance(self, correction: int = 0) -> Value:
        """Return the variance with divisor count - correction."""
        if self.count <= correction:
            raise ValueError(f"{self.count} values have no variance with divisor n - {correction}: update more often")
        spread: Any = self.spread
        return spread / (self.count - correction)  # type: ignore[no-any-return]
