"""
A sweep as one picture: the score of every trial over each key that was varied.

One idea: where along a key the good trials lie. A dot is a trial, lower is better; the best has a ring, a cross on the
upper edge is a trial that diverged or failed. SVG with colours for light and for dark pages, as the studies' pictures.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from pyro_bnn.runs.vary import Vary

__all__ = ["picture"]

_WIDTH = 640
_SHOWN = ("val_nll", "NLL on validation rows")


def picture(name: str, vary: Sequence[Vary], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture of a sweep as SVG text."""
    from pyro_bnn.studies import charts
    from pyro_bnn.studies.picture import STYLE

    scored = [row for row in rows if row.get(_SHOWN[0]) is not None]
    finished = [row for row in scored if row["status"] == "finished"]
    best = min(finished, key=lambda row: float(row[_SHOWN[0]]), default=None)
    lost = [row for row in rows if row["status"] in ("diverged", "failed")]
    said = f"{len(finished)} of {len(rows)} trials finished" + (f", {len(lost)} diverged or failed" if lost else "")
    if best is not None:
        said += f"; best: trial {best['trial']}, {float(best[_SHOWN[0]]):.4g}"
    body = [
        f'<text class="title" x="16" y="26">{escape(f"{name}, swept")}</text>',
        f'<text x="{_WIDTH - 24}" y="26" text-anchor="end">{escape(said)}</text>',
    ]
    panels = [_panel(one, scored, lost, best) for one in vary]
    y = charts.figures(body, panels, _WIDTH, 38.0) if scored else 44.0
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {y:.0f}" width="{_WIDTH}" '
        f'height="{y:.0f}"><title>{escape(f"{name}, swept: {said}")}</title><desc>{escape(", ".join(map(str, vary)))}'
        f"</desc><style>{STYLE}{charts.STYLE}</style>"
        f'<rect class="paper" width="{_WIDTH}" height="{y:.0f}" rx="6"/>{"".join(body)}</svg>\n'
    )


def _panel(
    one: Vary, scored: Sequence[Mapping[str, Any]], lost: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return a key's figure; values that are no numbers stand side by side."""
    numeric = bool(one.law) or all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in one.choices)
    named = [] if numeric else [str(value) for value in one.choices]

    def place(row: Mapping[str, Any]) -> float:
        return float(row[one.key]) if numeric else float(named.index(str(row[one.key])))

    return {
        "kind": "dots",
        "title": one.key,
        "x": one.key,
        "y": _SHOWN[1],
        "log": "x" if one.logarithmic else "",
        "points": [[place(row), float(row[_SHOWN[0]])] for row in scored],
        "lost": [place(row) for row in lost],
        "best": None if best is None else [place(best), float(best[_SHOWN[0]])],
        "names": named,
        "ticks": sorted(one.choices) if numeric and len(one.choices) <= 6 else [],
        "lines": [],
    }
