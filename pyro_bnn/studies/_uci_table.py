"""
The table of the UCI sets, from the trials that were run: ours, and what was published, in columns of their own.

    python -m pyro_bnn.studies._uci_table --run yacht,boston --methods ensemble --data-root DATA --page docs/uci.md

runs what is missing of the sets and methods asked for (each trial is kept by its content, so that an interrupted
command goes on at the set it was at), and writes `uci.table.csv`, `uci.table.json` and `uci.table.svg` of all that is
there, and the tables of the page `docs/uci.md`. A set that was not run has no row.
"""

import argparse
import csv
import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pyro_bnn.common.files import insert_between, write_text
from pyro_bnn.studies._uci_published import PUBLISHED, SETS
from pyro_bnn.studies.study import Scale
from pyro_bnn.studies.trials import default_store, run_trials, stored, took
from pyro_bnn.studies.uci import METHODS, RIVALS, apart, is_ahead, is_level, sets_of, trial

__all__ = ["as_csv", "as_markdown", "picture", "rows_of"]

CHOSEN = "ensemble"
"""The one method that is put beside the published ones."""
NOT_THE_SAME = "not the same splits"
_SCORES = ("ll", "rmse", "crps", "cover50", "cover90", "cover95")
_ALONE = {"ensemble": "single", "two layers": "two layers, single", "one noise level": "one noise level, single"}
"""What the first member by itself is called, where the ensemble has one."""


def rows_of(
    records: Mapping[tuple[str, str], Mapping[str, Any]], seconds: Mapping[tuple[str, str], float]
) -> list[Any]:
    """Return a row for each set and method: mean and standard error of every score over the set's splits."""
    rows = []
    for data in SETS:
        for method in METHODS:
            record = records.get((data, method))
            if record is None:
                continue
            for name, prefix in ((method, ""), *(((_ALONE[method], "single_"),) if method in _ALONE else ())):
                row: dict[str, Any] = {"set": data, "method": name, "splits": len(record["ll"])}
                for score in _SCORES:
                    values = [float(v) for v in record[prefix + score]]
                    mean = sum(values) / len(values)
                    spread = sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1)
                    row[score], row[f"{score}_se"] = mean, math.sqrt(spread / len(values))
                row["seconds"] = seconds.get((data, method), math.nan)
                rows.append(row)
    return rows


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return our rows and the published ones, with where these come from."""
    columns = ["set", "method", "splits", *(f"{s}{e}" for s in _SCORES for e in ("", "_se")), "seconds", "source"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} | {"source": "this library"}
        )
    for method, published in PUBLISHED.items():
        splits = "the same splits" if published.standard else NOT_THE_SAME
        for data, ll in published.ll.items():
            kept = {"ll": ll, "ll_se": published.ll_se.get(data, ""), "rmse": published.rmse.get(data, "")}
            writer.writerow({"set": data, "method": method, "splits": splits, "source": published.source, **kept})
    return text.getvalue()


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tables of the page by name: beside the published, the counts, our methods, and all scores."""
    ours = {(row["set"], row["method"]): row for row in rows}
    sets = [data for data in SETS if (data, CHOSEN) in ours]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    published = {
        f"{name} ({'the same splits' if p.standard else NOT_THE_SAME})": p.ll
        for name, p in sorted(PUBLISHED.items(), key=lambda item: not item[1].standard)
    }
    beside = [
        [
            data,
            _with_error(ours[data, CHOSEN], "ll"),
            *(f"{ll[data]:.2f}" if data in ll else "" for ll in published.values()),
        ]
        for data in sets
    ]
    counts = []
    for method in methods:
        likelihoods = {data: (row["ll"], row["ll_se"]) for data in sets if (row := ours.get((data, method)))}
        for rival in RIVALS:
            differences = [(d, s) for _, d, s in apart(likelihoods, rival)]
            level, above, ahead = (
                sum(holds(d, s) for d, s in differences) for holds in (is_level, _is_above, is_ahead)
            )
            counts.append([method, rival, *map(str, (len(differences), level, above, ahead))])
    among = [
        [data, *(_with_error(ours[data, method], "ll") if (data, method) in ours else "" for method in methods)]
        for data in sets
    ]
    scores = [
        [
            row["set"],
            row["method"],
            str(row["splits"]),
            *(_with_error(row, score, ".4g", ".2g") for score in ("rmse", "crps")),
            *(f"{100 * row[f'cover{level}']:.1f}" for level in (50, 90, 95)),
            f"{row['seconds']:.0f}",
        ]
        for row in rows
    ]
    return {
        "published": _table(["set", CHOSEN, *published], beside),
        "counts": _table(["method", "beside", "sets", "level", "above", "ahead"], counts),
        "methods": _table(["set", *methods], among),
        "scores": _table(["set", "method", "splits", "RMSE", "CRPS", "50 %", "90 %", "95 %", "CPU seconds"], scores),
    }


def _with_error(row: Mapping[str, Any], score: str, mean: str = ".2f", error: str = ".2f") -> str:
    return f"{row[score]:{mean}} ({row[f'{score}_se']:{error}})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _is_above(d: float, s: float) -> bool:
    return d > 0


# -- the figure --------------------------------------------------------------------------------------------------------

_STYLE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif; }
.paper { fill: #ffffff; } text { font-size: 11px; fill: #5b616e; } .name { fill: #1d1f24; font-size: 12px; }
.title { fill: #1d1f24; font-weight: 600; font-size: 14px; } .grid { stroke: #e3e1db; }
.theirs { fill: none; stroke: #8a93a6; stroke-width: 1.5; } .same { fill: #8a93a6; } .bar { stroke-width: 2; }
.ours { fill: #2f5fd0; stroke: #2f5fd0; } .alone { fill: #1f8a5b; stroke: #1f8a5b; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #1c1f25; } text { fill: #a0a6b2; } .name, .title { fill: #e9e9ea; } .grid { stroke: #2e323a; }
  .ours { fill: #7ea6ff; stroke: #7ea6ff; } .alone { fill: #5cc796; stroke: #5cc796; }
}
"""
_WIDTH, _LEFT, _RIGHT, _ROW = 720, 84, 70, 44


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one line for each set, from the worst to the best published log-likelihood, with ours on it, as SVG."""
    shown = [data for data in SETS if any(row["set"] == data and row["method"] == CHOSEN for row in rows)]
    height = 96 + _ROW * len(shown)
    body = [f'<rect class="paper" width="{_WIDTH}" height="{height}" rx="6"/>']
    body.append('<text class="title" x="16" y="26">Test log-likelihood, each set on its own scale</text>')
    legend = [("ours", "ensemble of five"), ("alone", "the first alone"), ("same", "published, the same splits")]
    legend.append(("theirs", f"published, {NOT_THE_SAME}"))
    for i, (kind, words) in enumerate(legend):
        body.append(f'<circle class="{kind}" cx="{22 + 165 * i}" cy="46" r="4"/>')
        body.append(f'<text x="{31 + 165 * i}" y="50">{escape(words)}</text>')
    for i, data in enumerate(shown):
        body += _line(data, rows, 86 + _ROW * i)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}"><title>UCI regression: test log-likelihood</title><style>{_STYLE}</style>'
        f"{''.join(body)}</svg>\n"
    )


def _line(data: str, rows: Sequence[Mapping[str, Any]], y: float) -> list[str]:
    own = {row["method"]: row for row in rows if row["set"] == data and row["method"] in ("ensemble", "single")}
    theirs = {name: p.ll[data] for name, p in PUBLISHED.items() if data in p.ll}
    values = [*theirs.values(), *(row["ll"] for row in own.values())]
    worst = sorted(values)[max(0, len(values) // 8 - 1)] if max(values) - min(values) > 3 else min(values)
    low, high = worst - 0.06 * (max(values) - worst), max(values) + 0.06 * (max(values) - worst)

    def place(value: float) -> float:
        share: float = (min(max(value, low), high) - low) / (high - low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    parts = [f'<path class="grid" d="M{_LEFT},{y} H{_WIDTH - _RIGHT}"/>']
    parts.append(f'<text class="name" x="16" y="{y + 4}">{data}</text>')
    for name, value in theirs.items():
        kind = "same" if PUBLISHED[name].standard else "theirs"
        words = escape(f"{name}: {value:.2f}")
        parts.append(f'<circle class="{kind}" cx="{place(value):.1f}" cy="{y}" r="4"><title>{words}</title></circle>')
    for name, kind in (("single", "alone"), ("ensemble", "ours")):
        if name not in own:
            continue
        ll, se = own[name]["ll"], own[name]["ll_se"]
        parts.append(f'<path class="{kind} bar" d="M{place(ll - 2 * se):.1f},{y} H{place(ll + 2 * se):.1f}"/>')
        words = escape(f"{name}: {ll:.2f} ({se:.2f})")
        parts.append(f'<circle class="{kind}" cx="{place(ll):.1f}" cy="{y}" r="5"><title>{words}</title></circle>')
    parts.append(f'<text x="{_LEFT}" y="{y + 18}">{low:.2f}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{y + 18}" text-anchor="end">{high:.2f}</text>')
    if "ensemble" in own:
        parts.append(
            f'<text class="name" x="{_WIDTH - 14}" y="{y + 4}" text-anchor="end">{own["ensemble"]["ll"]:.2f}</text>'
        )
    return parts


# -- the command -------------------------------------------------------------------------------------------------------


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pyro_bnn.studies._uci_table", description="The table of the UCI sets."
    )
    parser.add_argument("--run", default="", help="the sets to run what is missing of, separated by commas, or all")
    parser.add_argument("--methods", default="ensemble", help=f"of {', '.join(METHODS)}, separated by commas, or all")
    parser.add_argument("--scale", default="cpu", choices=["cpu", "source"])
    parser.add_argument("--data-root", type=Path, help="where NAME.npz are")
    parser.add_argument("--store", type=Path, help="where trials are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/studies"), help="the folder of the table")
    parser.add_argument("--page", type=Path, help="the page to write the tables into, docs/uci.md")
    given = parser.parse_args()
    scale: Scale = given.scale
    store = default_store() if given.store is None else given.store
    sets = SETS if given.run == "all" else tuple(filter(None, given.run.split(",")))
    methods = tuple(METHODS) if given.methods == "all" else tuple(given.methods.split(","))
    unknown = [*(set(sets) - set(SETS)), *(set(methods) - set(METHODS))]
    if unknown:
        parser.error(f"{unknown[0]!r} is unknown: the sets are {', '.join(SETS)}, the methods {', '.join(METHODS)}")
    for method in methods:
        for data in [name for name in sets if name in sets_of(method)]:
            run_trials([trial(data, method, scale)], store, data_root=given.data_root)
            sys.stdout.write(f"{data}, {method}\n")
            sys.stdout.flush()
    records, seconds = {}, {}
    for data in SETS:
        for method in METHODS:
            of = trial(data, method, scale)
            record = stored(of, store)
            if record is not None:
                records[data, method], seconds[data, method] = record, sum(took([of], store).values())
    rows = rows_of(records, seconds)
    write_text(given.out / "uci.table.csv", as_csv(rows))
    if given.page is not None:
        text = given.page.read_text()
        for name, table in as_markdown(rows).items():
            text = insert_between(text, name, table)
        write_text(given.page, text)
    write_text(given.out / "uci.table.svg", picture(rows))
    kept = [
        json.dumps({"set": data, "method": method, **record}, sort_keys=True)
        for (data, method), record in records.items()
    ]
    write_text(given.out / "uci.table.json", "[\n" + ",\n".join(kept) + "\n]\n")


if __name__ == "__main__":
    _main()
