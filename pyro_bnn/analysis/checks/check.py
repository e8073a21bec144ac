"""One check of a posterior, and all of them together, in words."""

import textwrap
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

__all__ = ["Check", "Diagnosis", "Verdict"]

Verdict: TypeAlias = Literal["good", "doubtful", "bad", "not checked"]

_ORDER: tuple[Verdict, ...] = ("good", "not checked", "doubtful", "bad")
_SIGN: dict[Verdict, str] = {"good": "ok", "doubtful": "??", "bad": "!!", "not checked": "--"}


@final
@dataclass(frozen=True)
class Check:
    """
    What one check saw.

    :param name: what was looked at.
    :param verdict: good, doubtful, bad, or not checked.
    :param words: what was seen, with its figures; why it was not checked; what to do.
    :param threshold: from where on it is doubtful or bad, and who says so.
    :param value: the figure that decided, if there is one.
    """

    name: str
    verdict: Verdict
    words: str
    threshold: str = ""
    value: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the check as plain data."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "words": self.words,
            "threshold": self.threshold,
            "value": self.value,
        }


@final
@dataclass(frozen=True)
class Diagnosis:
    """
    All checks of a posterior; `print` shows them.

    :param checks: one after another.
    """

    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the checks that were made."""
        made = [check.verdict for check in self.checks if check.verdict != "not checked"]
        return max(made, key=_ORDER.index, default="not checked")

    def __getitem__(self, name: str) -> Check:
        """Return the check of that name."""
        found = {check.name: check for check in self.checks}
        if name not in found:
            raise KeyError(f"no check {name!r}: there are {', '.join(found)}")
        return found[name]

    @property
    def summary(self) -> str:
        """One sentence."""
        named = {v: [c.name for c in self.checks if c.verdict == v] for v in ("bad", "doubtful")}
        if named["bad"]:
            return f"Not to be trusted: {', '.join(named['bad'])}."
        if named["doubtful"]:
            return f"To be used with care: {', '.join(named['doubtful'])}."
        return "Nothing speaks against this posterior." if self.verdict == "good" else "Nothing could be checked."

    def __str__(self) -> str:
        lines = []
        for check in self.checks:
            head = f"{_SIGN[check.verdict]}  {check.name:<16}"
            lines += textwrap.wrap(check.words, 79, initial_indent=head, subsequent_indent=" " * 20)
        return "\n".join([*lines, "", self.summary])

    def to_dict(self) -> dict[str, Any]:
        """Return verdict and checks as plain data."""
        return {"verdict": self.verdict, "summary": self.summary, "checks": [c.to_dict() for c in self.checks]}
