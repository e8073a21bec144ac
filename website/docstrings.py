"""What docstrings are to Markdown: examples become blocks of code, and roles such as :func:`fit` links."""

import re
from typing import Any

from griffe import Extension

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|obj):`~?([^`]+)`")
_PROMPT = re.compile(r"\s*>>> ")


def as_markdown(text: str) -> str:
    """Return a docstring whose examples are fenced, and whose roles are code."""
    lines: list[str] = []
    inside = False
    for line in _ROLE.sub(r"`\1`", text).split("\n"):
        if not inside and _PROMPT.match(line):
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    if inside:
        lines.append("```")
    return "\n".join(lines)


class Docstrings(Extension):
    """Rewrite every docstring that is read."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
