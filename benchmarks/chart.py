"""The results as one picture: a panel of bars per kind of work, plain PyTorch as the line everybody is measured by."""

from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.contenders import OURS

PANELS = ("lenet5", "resnet20", "mlp100", "wide-1200", "predict", "predict-wide")
INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"
OWN, OWN_LIGHT, OTHER = "#0f766e", "#5eada5", "#c3c8d1"


def _panel(axes: Axes, work: dict[str, Any]) -> None:
    rows = [(n, c) for n, c in work["contenders"].items() if n != work["base"]]
    rows.sort(key=lambda row: row[1]["ratio_of_minima"], reverse=True)
    names = [name for name, _ in rows]
    values = [c["ratio_of_minima"] for _, c in rows]
    main = OURS[0].title
    own = {contender.title for contender in OURS}
    colours = [OWN if n == main else OWN_LIGHT if n in own else OTHER for n in names]
    places = range(len(rows))
    axes.barh(places, values, color=colours, height=0.66, zorder=2)
    for place, (name, numbers) in zip(places, rows, strict=True):
        low, high = numbers["lower_quartile"], numbers["upper_quartile"]
        axes.plot([low, high], [place, place], color=INK, linewidth=1.1, zorder=3, solid_capstyle="butt", alpha=0.75)
        axes.plot([numbers["median_ratio"]], [place], "|", color=INK, markersize=6, zorder=3, alpha=0.75)
        end = max(values[place], high)
        axes.annotate(
            f"{values[place]:.2f}" if values[place] < 10 else f"{values[place]:.1f}",
            (end, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            zorder=5,
            color=OWN if name in own else INK,
            fontweight="bold" if name == main else "normal",
        )
    axes.axvline(1.0, color=INK, linewidth=1.0, zorder=4)
    axes.set_yticks(list(places), names, fontsize=8.5)
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_color(OWN if name in own else INK)
        label.set_fontweight("bold" if name == main else "normal")
    top = max(max(values), max(c["upper_quartile"] for _, c in rows))
    if top > 6:
        axes.set_xscale("log")
        ticks = [t for t in (0.5, 1, 2, 5, 10, 20, 50, 100) if min(0.8, min(values)) <= t <= top * 1.3]
        axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
        axes.minorticks_off()
        axes.set_xlim(min(0.6, 0.8 * min(values)), top * 1.7)
    else:
        step = 0.5 if top < 4 else 1.0
        ticks = [i * step for i in range(int(top / step) + 2)]
        axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
        axes.set_xlim(0, top * 1.14)
    axes.set_title(fill(work["title"], 40), fontsize=10.5, color=INK, loc="left", pad=8, fontweight="bold")
    axes.grid(axis="x", color=GRID, linewidth=0.8, zorder=0)
    axes.tick_params(axis="both", length=0, labelcolor=INK)
    axes.tick_params(axis="x", labelsize=8, labelcolor=MUTED)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if work["failed"]:
        text = "no number: " + ", ".join(work["failed"])
        axes.text(0, -0.13, text, transform=axes.transAxes, fontsize=7.5, color=MUTED, va="top")


def draw(results: dict[str, Any], path: Path) -> None:
    """Write the chart."""
    kinds = [kind for kind in PANELS if kind in results["work"]]
    if not kinds:
        return
    columns = min(2, len(kinds))
    lines = -(-len(kinds) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(5.9 * columns, 4.1 * lines + 0.9), squeeze=False)
    flat = grid.reshape(-1)
    for axes, kind in zip(flat, kinds, strict=False):
        _panel(axes, results["work"][kind])
    for axes in flat[len(kinds) :]:
        axes.set_visible(False)
    machine = results["machine"]
    figure.suptitle(
        "Time relative to the same network without uncertainty", x=0.015, y=0.985, ha="left", fontsize=14, color=INK
    )
    figure.text(
        0.015,
        0.985 - 0.33 / figure.get_figheight(),
        f"plain PyTorch = 1; bars: ratio of minima; ticks: median and quartiles of paired rounds. "
        f"{machine['threads']} threads, torch {machine['versions']['torch']}, {machine['date']}",
        ha="left",
        va="top",
        fontsize=8.5,
        color=MUTED,
    )
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.62 / figure.get_figheight()), h_pad=2.2, w_pad=2.5)
    figure.savefig(path, dpi=150, facecolor="white")
    plt.close(figure)
