"""
Every method against the reference posteriors, and the calibration of guides: `python -m benchmarks.references`.

It writes docs/references.md and what that is made of, benchmarks/references.json. Each row is kept as it is finished
(`--store`), so that the command goes on from where it was killed; `--jobs 2` computes two at a time, `--only
distances`, `--only calibration` or `--only widths` one of the tables, `--programs` and `--methods` some of the rows;
what was not run yet is shown as such. `--page` writes the page from the JSON alone. A Laplace approximation needs
laplace-torch.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pyro_bnn.common.machine import cpu_name
from pyro_bnn.references import PROGRAMS, load_reference, reference_names, widths
from pyro_bnn.references.calibration import DATASETS, GUIDES, NUTS, STEPS
from pyro_bnn.references.compare import FLOOR, MEMBERS, METHODS, PASSES
from pyro_bnn.references.stored import digest_of
from pyro_bnn.studies.study import Trial
from pyro_bnn.studies.trials import run_trials, stored, took

ROOT = Path(__file__).parent.parent
KINDS = ("distances", "calibration", "widths")
EXACT = "conjugate-regression"


def trials(
    kind: str, programs: Sequence[str], methods: Sequence[str] | None, sizes: Mapping[str, int]
) -> dict[tuple[str, str], Trial]:
    """The trials of a table, by program and row; the widths are of a line of their own."""
    if kind == "widths":
        compute = "pyro_bnn.references.widths:widths"
        names = [name for name in widths.GUIDES if methods is None or name in methods]
        return {("", name): Trial(name, 0, compute=compute, arguments={"guide": name}) for name in names}
    rows = [FLOOR, *METHODS] if kind == "distances" else [*GUIDES, NUTS]
    found = {}
    for program in programs:
        for name in (row for row in rows if methods is None or row in methods):
            if kind == "distances":
                compute = "pyro_bnn.references.compare:row"
                arguments = {"name": program, "method": name, "passes": sizes["passes"], "of": digest_of(program)}
            elif name == NUTS and program != EXACT:
                continue
            else:
                compute = "pyro_bnn.references.calibration:calibration"
                arguments = {"name": program, "guide": name, "datasets": sizes["datasets"], "steps": sizes["steps"]}
            found[program, name] = Trial(f"{program}, {name}", 0, compute=compute, arguments=arguments)
    return found


def collected(store: Path, sizes: Mapping[str, int]) -> dict[str, Any]:
    """What is in the store, as plain data."""
    tables: dict[str, Any] = {kind: {} for kind in KINDS}
    everything = {}
    for kind in KINDS:
        for (program, name), trial in trials(kind, reference_names(), None, sizes).items():
            record = stored(trial, store)
            if record is not None:
                rows = tables[kind] if kind == "widths" else tables[kind].setdefault(program, {})
                rows[name] = record
                everything[trial.key()] = trial
    return {**tables, **sizes, **took(list(everything.values()), store), "machine": cpu_name()}


# ------------------------------------------------------------------------------------------------------- page

INTRODUCTION = """
Six small programs whose posteriors are known well: four chains of NUTS in float64, {draws:,} draws in all, kept as a
reference only under posteriordb's rule applied to functions: R-hat below 1.01 of every compared quantity, no
divergences ([Magnusson et al. 2024](https://arxiv.org/abs/2407.04967)). The package has them
(`pyro_bnn.references.load_reference(name)`): rows, every tenth draw of the functions, moments and quantiles of all,
the weights where there are few, and what the chains say about themselves. Compared are functions and not weights, for
hidden units can be exchanged: the mean of y at some inputs, and for classes the logits less their mean.

```python
from pyro_bnn.references import load_reference

reference = load_reference("conjugate-regression")
print(reference.facts["rhat"], reference.misses())
# reference.distance(posterior) of a posterior of the same rows, reference.x and reference.y
```

`python -m pyro_bnn.references` draws them again; chains that are finished are not drawn twice. Of
`conjugate-regression` the posterior is known in closed form as well, and the tests hold the shipped draws to it.
"""
DISTANCES = """
W1 is the Wasserstein-1 distance of a method's draws of the function at each input, in units of the reference's
deviation there; the error of the mean is in the same units; the ratio of deviations is 1 for the right width; all three
are averaged over the inputs. The first line is the floor: NUTS from other seeds, 1,000 draws. Every method has the same
budget, {passes:,} passes over the rows: as many steps of Adam (rate 0.01 with a cosine) for what is optimised, four
steps of a quarter of the rows per pass for SGLD, one for LMC; {members} members share the passes; averages begin at
half of them. Nothing was tuned for a row: a sampler far from the reference may be so by its step. One seed. – is what
a program does not have: masks, a curvature of Kronecker factors and reparameterised layers are for networks.
"""
CALIBRATION = """
{datasets} data sets are drawn from each program's prior at its own inputs, the guide is trained on each ({steps:,}
steps of Adam on all rows), and the rank of the true function among 99 draws of the guide is looked at, at five inputs
(two digits of the last layer). The verdict is that of `pb.sbc`: Kolmogorov-Smirnov tests of all quantities,
Holm-adjusted, so that a right guide is called wrong with probability .05 at most. Spread is 1 where widths are right,
towards 3 where the guide is too narrow and towards 0 where it is too wide, as independent weights can be in functions.
A guide that passes is not shown to be right: {datasets} data sets see a spread of about 1.3. NUTS is run on the line
alone, one chain for each data set.
"""


WIDTHS = """
Slope and intercept of a line whose inputs lie around 2 have a correlation of -.9, and their posterior is known. Sixteen
trainings of 3,000 steps from draws, from seeds of their own: the deviations that a guide ends with, in units of the
exact ones.
"""


def facts_table() -> list[str]:
    lines = [
        "| program | weights and rows | draws | R-hat | bulk ESS | divergences | seconds | |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for name in PROGRAMS:
        if name not in reference_names():
            lines.append(f"| `{name}` | {PROGRAMS[name].words} | not drawn yet | | | | | |")
            continue
        reference = load_reference(name)
        facts, misses = reference.facts, reference.misses()
        verdict = "; ".join(misses) or "a reference"
        lines.append(
            f"| `{name}` | {PROGRAMS[name].words} | {facts['draws']:,} | {facts['rhat']:.4f} "
            f"| {facts['ess_bulk']:,.0f} | {facts['divergences']} | {facts['seconds']:.0f} | {verdict} |"
        )
    return lines


def distance_table(program: str, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["| posterior | W1 | error of the mean | ratio of deviations |", "|---|---:|---:|---:|"]
    for name in (FLOOR, *METHODS):
        if name not in rows:
            lines.append(f"| {name} | not run | | |")
        elif "refused" in rows[name]:
            lines.append(f"| {name} | – | – | – |")
        else:
            row = rows[name]
            lines.append(f"| {name} | {row['wasserstein']:.3f} | {row['mean']:.3f} | {row['sd_ratio']:.2f} |")
    return [f"\n### {program}\n", f"{PROGRAMS[program].words[0].upper()}{PROGRAMS[program].words[1:]}.\n", *lines]


def overview(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """W1 of every method under every program."""
    programs = reference_names()
    lines = ["| W1 | " + " | ".join(f"`{name}`" for name in programs) + " |", "|---|" + "---:|" * len(programs)]
    for name in (FLOOR, *METHODS):
        cells = []
        for program in programs:
            row = tables.get(program, {}).get(name)
            cells.append("not run" if row is None else "–" if "refused" in row else f"{row['wasserstein']:.3f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def calibration_table(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    lines = [
        "| program | guide | verdict | smallest p | spread (least to most) | quantities |",
        "|---|---|---|---:|---:|---:|",
    ]
    for program in reference_names():
        for guide in (*GUIDES, *([NUTS] if program == EXACT else [])):
            row = tables.get(program, {}).get(guide)
            if row is None:
                lines.append(f"| `{program}` | {guide} | not run | | | |")
                continue
            spread = f"{row['spread']:.2f} ({row['spread_low']:.2f} to {row['spread_high']:.2f})"
            lines.append(
                f"| `{program}` | {guide} | {row['verdict']} | {row['p']:.2g} | {spread} | {row['quantities']} |"
            )
    return lines


def width_table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["| guide | deviations found / exact | least | most |", "|---|---:|---:|---:|"]
    for name in widths.GUIDES:
        row = rows.get(name)
        cells = ["not run", "", ""] if row is None else [f"{row[key]:.3f}" for key in ("ratio", "least", "most")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if "mean field" in rows:
        lines.append(f"| the best independent normals, in theory | {rows['mean field']['independent']:.3f} | | |")
    return lines


def page(found: Mapping[str, Any]) -> str:
    draws = max((load_reference(name).facts["draws"] for name in reference_names()), default=0)
    parts = [
        "# Reference posteriors\n",
        "Made by `python -m benchmarks.references`.",
        INTRODUCTION.format(draws=draws),
        *facts_table(),
        "\n## How far every method is",
        DISTANCES.format(passes=found["passes"], members=MEMBERS),
        *overview(found["distances"]),
        *(line for name in reference_names() for line in distance_table(name, found["distances"].get(name, {}))),
        "\n## Are guides calibrated?",
        CALIBRATION.format(datasets=found["datasets"], steps=found["steps"]),
        *calibration_table(found["calibration"]),
        "\n## Widths of correlated weights",
        WIDTHS,
        *width_table(found["widths"]),
    ]
    return "\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--store", type=Path, default=Path("runs/references-table"), help="where rows are kept")
    parser.add_argument("--jobs", type=int, default=1, help="rows side by side")
    parser.add_argument("--only", choices=KINDS, help="one of the tables")
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), help="default all that have a reference")
    parser.add_argument(
        "--methods", nargs="+", choices=sorted({FLOOR, *METHODS, *GUIDES, NUTS, *widths.GUIDES}), help="default all"
    )
    parser.add_argument("--passes", type=int, default=PASSES)
    parser.add_argument("--datasets", type=int, default=DATASETS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--page", action="store_true", help="write the page from the JSON alone")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "references.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "references.md")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    sizes = {"passes": given.passes, "datasets": given.datasets, "steps": given.steps}
    if not given.page:
        for kind in KINDS if given.only is None else (given.only,):
            wanted = trials(kind, given.programs or reference_names(), given.methods, sizes)
            run_trials(
                list(wanted.values()),
                given.store,
                jobs=given.jobs,
                done=lambda finished, total, kind=kind: print(f"{kind}: {finished} of {total}", flush=True),
            )
        given.json.write_text(json.dumps(collected(given.store, sizes), indent=1, sort_keys=True) + "\n")
    given.out.write_text(page(json.loads(given.json.read_text())))
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
