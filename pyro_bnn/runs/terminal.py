"""The terminal as it shows words from files: brackets are no markup, and what a terminal would obey is written out."""

from typing import Any, final

from rich.console import Console
from rich.text import Text

from pyro_bnn.common.shown import visible

__all__ = ["PlainConsole"]


@final
class PlainConsole(Console):
    """A console for which a plain string is words and nothing else; what is to be bold is a `rich.text.Text`."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string, a cell of a table among them, as it is to be shown."""
        return super().render_str(visible(text, keep="\n"), **{**options, "markup": False, "emoji": False})
