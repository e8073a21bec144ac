"""
Words from files as they are shown to people: what a terminal or a page would obey is written out.

Control characters (escape sequences of a terminal among them), the marks that turn the direction of writing, and
separators of lines and paragraphs become their escapes, `x1b`
or `u202e` after a backslash; letters, accents and emoji stay.
"""

import math
import re

__all__ = ["in_markdown", "significant", "visible"]

_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_MARKS = re.compile(r"([\\`*\[\]|])")


def visible(text: object, keep: str = "") -> str:
    """
    Return a text with every character that is obeyed rather than shown written as its escape.

    :param keep: characters that stay, such as a newline.
    """

    def written(found: re.Match[str]) -> str:
        character = found[0]
        return character if character in keep else character.encode("unicode_escape").decode("ascii")

    return _HIDDEN.sub(written, str(text))


def in_markdown(text: object) -> str:
    """Return a text as Markdown that shows it, in a line of its own or in a cell: no markup, no HTML."""
    words = " ".join(visible(text, keep="\n\t").split())
    words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(r"\\\1", words)


def significant(value: float, digits: int = 4) -> str:
    """
    Return a number with so many significant digits, and all of those before the point.

    Without an exponent where people would write none, from a thousandth to ten millions.

    >>> significant(341_623.2), significant(8135.44, 3), significant(0.12345), significant(2.5), significant(2.5e9)
    ('341,623', '8,135', '0.1235', '2.5', '2.5e+09')
    """
    if not 1e-3 <= abs(value) < 1e7:  # nor NaN
        return f"{value:.{digits}g}"
    text = f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
