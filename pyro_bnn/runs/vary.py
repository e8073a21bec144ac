"""
What a sweep varies: a recipe's key, and the law or the list that its values are drawn from.

    optim.loc.lr=lognormal(-6,1)      exp of N(-6, 1)
    optim.loc.lr=loguniform(1e-5,1e-1)
    val_samples=integers(1,8)         both ends included
    temperature=uniform(0.5,1)        from low to high
    method.momentum=normal(0.9,0.45,0,1)    N(0.9, 0.45^2), drawn again outside of (0, 1)
    eta=0.03,0.1,0.3                  one of a list, also choice(0.03,0.1,0.3)

A draw follows from the sweep's seed, the trial's number and the key, and from nothing else: another key, another number
of trials or another order of work changes no draw. Numbers are rounded to six digits.
"""

import difflib
import math
import re
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from pyro_bnn.recipe import parse_settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["LAWS", "Vary", "normal_within", "parse_vary"]

Draw = Callable[[np.random.Generator, Sequence[float]], float]


def normal_within(rng: np.random.Generator, mean: float, sd: float, low: float, high: float) -> float:
    """
    Return a draw of N(mean, sd^2), drawn again until it lies strictly between two numbers.

    >>> 0 < normal_within(np.random.default_rng(0), 0.9, 0.45, 0, 1) < 1
    True
    """
    while True:
        found = float(rng.normal(mean, sd))
        if low < found < high:
            return found


LAWS: dict[str, tuple[str, Draw]] = {
    "uniform": ("low,high", lambda rng, a: rng.uniform(a[0], a[1])),
    "loguniform": ("low,high", lambda rng, a: math.exp(rng.uniform(math.log(a[0]), math.log(a[1])))),
    "normal": ("mean,sd[,low,high]", lambda rng, a: normal_within(rng, *(*a, -math.inf, math.inf)[:4])),
    "lognormal": ("mean of the logarithm,its sd", lambda rng, a: math.exp(rng.normal(a[0], a[1]))),
    "integers": ("low,high", lambda rng, a: int(rng.integers(int(a[0]), int(a[1]) + 1))),
}
"""Name -> its numbers, and how one is drawn."""


@final
@dataclass(frozen=True)
class Vary:
    """
    A key of a recipe and where its values come from.

    :param law: one of `LAWS`, with its `numbers`; "" for one of `choices`.
    """

    key: str
    law: str = ""
    numbers: tuple[float, ...] = ()
    choices: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if not self.law:
            if len(self.choices) < 2:
                raise ValueError(f"--vary {self}: one value is not varied: write several, or --set {self}")
            return
        wanted, _ = LAWS[self.law]
        count, said = len(self.numbers), f"--vary {self}: {self.law} takes ({wanted})"
        if count != 2 and (self.law, count) != ("normal", 4):
            raise ValueError(f"{said}, and {count} numbers were given")
        first, second = self.numbers[:2]
        bounds = self.numbers[2:] or (-math.inf, math.inf)
        if not all(map(math.isfinite, (first, second))) or any(map(math.isnan, bounds)):
            raise ValueError(f"{said}, all of them finite")
        if self.law in ("normal", "lognormal"):
            if not second > 0:
                raise ValueError(f"{said}: its sd is {second:g} and has to be above 0")
        elif not first < second:
            raise ValueError(f"{said}: low is {first:g} and has to be below high, {second:g}")
        if self.law == "loguniform" and not first > 0:
            raise ValueError(f"{said}: low is {first:g} and has to be above 0")
        if self.law == "integers" and not (first.is_integer() and second.is_integer()):
            raise ValueError(f"{said}: both have to be whole numbers")
        if self.law == "normal" and _share(first, second, *bounds) < 0.01:
            raise ValueError(f"{said}: less than 1 % of the draws lie between {bounds[0]:g} and {bounds[1]:g}")

    def __str__(self) -> str:
        """Return it as it is typed."""
        if not self.law:
            return f"{self.key}={','.join(map(str, self.choices))}"
        return f"{self.key}={self.law}({','.join(f'{number:g}' for number in self.numbers)})"

    @property
    def logarithmic(self) -> bool:
        """Whether its values are seen best on a logarithmic axis."""
        if self.law:
            return self.law in ("loguniform", "lognormal")
        numbers = [v for v in self.choices if isinstance(v, (int, float)) and not isinstance(v, bool)]
        return len(numbers) == len(self.choices) and min(numbers) > 0 and max(numbers) >= 9 * min(numbers)

    def draw(self, seed: int, number: int) -> Any:
        """Return the value in a trial."""
        rng = np.random.default_rng([seed, number, zlib.crc32(self.key.encode())])
        if not self.law:
            return self.choices[int(rng.integers(len(self.choices)))]
        value = LAWS[self.law][1](rng, self.numbers)
        return value if isinstance(value, int) else float(f"{value:.6g}")


def _share(mean: float, sd: float, low: float, high: float) -> float:
    """Return the probability of N(mean, sd^2) between two numbers."""
    return 0.5 * (math.erf((high - mean) / (sd * math.sqrt(2))) - math.erf((low - mean) / (sd * math.sqrt(2))))


def parse_vary(text: str) -> Vary:
    """
    Read `key=law(numbers)` or `key=value,value,...`; a value is TOML where it can be, else text.

    >>> parse_vary("optim.loc.lr=lognormal(-6,1)")
    Vary(key='optim.loc.lr', law='lognormal', numbers=(-6.0, 1.0), choices=())
    >>> parse_vary("optim.loc.name=adam,sgd").choices
    ('adam', 'sgd')
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key or not values:
        raise ValueError(f"--vary {text!r} is not of the form key=values, e.g. --vary eta=0.03,0.1,0.3")
    called = re.fullmatch(r"([A-Za-z_]\w*)\s*\((.*)\)", values, re.DOTALL)
    if called is None:
        return Vary(key, choices=_listed(values))
    law, inner = called.groups()
    if law == "choice":
        return Vary(key, choices=_listed(inner))
    if law not in LAWS:
        near = difflib.get_close_matches(law, [*LAWS, "choice"], n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        known = ", ".join(f"{name}({numbers})" for name, (numbers, _) in LAWS.items())
        raise ValueError(f"--vary {text!r}: unknown law {law!r}{hint}; the laws are {known}, choice(a,b,...)")
    try:
        numbers = tuple(float(number) for number in inner.split(",")) if inner.strip() else ()
    except ValueError:
        raise ValueError(f"--vary {text!r}: {law} takes numbers ({LAWS[law][0]})") from None
    return Vary(key, law, numbers)


def _listed(text: str) -> tuple[Any, ...]:
    try:
        values = tomllib.loads(f"v = [{text}]")
        if len(values) == 1:
            return tuple(values["v"])
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    return tuple(parse_settings([f"v={part}"])["v"] for part in text.split(","))
