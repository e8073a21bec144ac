"""
The gallery: docs/studies.md from the outcomes beside it.

    python -m pyro_bnn.studies docs/studies
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyro_bnn.common.files import insert_between, write_text
from pyro_bnn.studies.findings import holm
from pyro_bnn.studies.picture import picture
from pyro_bnn.studies.run import study_names

__all__ = ["gallery", "outcomes_in", "summary", "write_gallery", "write_readme"]

_SCALES = ("smoke", "cpu", "source")


def outcomes_in(folder: Path) -> list[dict[str, Any]]:
    """Return every study's outcome at its largest scale with the seconds that it took; smoke scale decides nothing."""
    largest: dict[str, tuple[int, Path]] = {}
    for path in sorted(folder.glob("*.json")):
        name, scale, *rest = path.name.split(".")
        if scale not in _SCALES[1:] or rest != ["json"]:
            continue
        rank = _SCALES.index(scale)
        if rank >= largest.get(name, (-1, path))[0]:
            largest[name] = (rank, path)
    outcomes = []
    for _, (_, path) in sorted(largest.items()):
        outcome = json.loads(path.read_text())
        run = path.with_suffix(".run.json")
        circumstances = json.loads(run.read_text()) if run.is_file() else {}
        outcome |= {kind: circumstances.get(kind, 0.0) for kind in ("cpu_seconds", "seconds")}
        outcomes.append(outcome)
    return outcomes


def _p_values(outcomes: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], float]:
    """Return the Holm-adjusted p-value of every finding that decides and has one, over the whole gallery."""
    keys, values = [], []
    for outcome in outcomes:
        for i, finding in enumerate(outcome["findings"]):
            if finding["decides"] and finding["p"] is not None:
                keys.append((outcome["study"], i))
                values.append(finding["p"])
    return dict(zip(keys, holm(values), strict=True))


def summary(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """Return in a sentence how many claims were tested, and with which verdicts."""
    count = {
        kind: sum(o["verdict"] == kind for o in outcomes) for kind in ("confirmed", "contradicted", "inconclusive")
    }
    at_source = sum(outcome["scale"] == "source" for outcome in outcomes)
    claims = "1 claim" if len(outcomes) == 1 else f"{len(outcomes)} claims"
    return (
        f"{claims} tested: {count['confirmed']} confirmed, {count['contradicted']} contradicted, "
        f"{count['inconclusive']} inconclusive; {at_source} at the source's own size."
    )


def gallery(outcomes: Sequence[Mapping[str, Any]], pictures: str = "studies") -> str:
    """Return the page, with pictures from the folder `pictures` beside it."""
    adjusted = _p_values(outcomes)
    tests = len(adjusted)
    sums = {kind: sum(outcome[kind] for outcome in outcomes) for kind in ("cpu_seconds", "seconds")}
    took = _took(sums, 3600, "hours")
    parts = [
        "# The literature's claims, tested",
        "",
        f"{summary(outcomes)} All trials, one after another, took {took or 'no time that is known'}."
        " At scale `cpu` rows and epochs are fewer than the source's, seeds never.",
        "",
        "Each study fixes its rule before anything runs: paired seeds, the last epoch, a validation split, margins of",
        "equality. `pyro-bnn study NAME --scale cpu` runs it again; the same seeds give the same JSON. Intervals are",
        f"95 % (90 % for equality). {tests} findings rest on a test at the 5 % level, so about {0.05 * tests:.1f} of",
        "them would be confirmed by chance if every claim were false; *p, Holm* is adjusted for all of them.",
        "",
        "| study | claim | scale | verdict |",
        "| --- | --- | --- | --- |",
        *(
            f"| [{o['study']}](#{o['study']}) | {_cell(o['claim'])} | {o['scale']} | **{o['verdict']}** |"
            for o in outcomes
        ),
        "",
        *_without_verdict([outcome["study"] for outcome in outcomes]),
    ]
    for outcome in outcomes:
        parts += _section(outcome, adjusted, pictures)
    return "\n".join(parts).rstrip() + "\n"


def _section(outcome: Mapping[str, Any], adjusted: Mapping[tuple[str, int], float], pictures: str) -> list[str]:
    name, scale = outcome["study"], outcome["scale"]
    lines = [
        f"## {name}",
        "",
        f"**{outcome['verdict'].capitalize()}** at {scale} scale. {outcome['claim']}",
        "",
        f"*{outcome['source']}, {outcome['place']}.* Varied: {outcome['varied']} Measured: {outcome['measured']}",
        "",
        f"Rule: {outcome['rule']}",
        "",
        f"![{name}]({pictures}/{name}.{scale}.svg)",
        "",
        "| finding | estimate | interval | pairs | p | p, Holm | |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for i, finding in enumerate(outcome["findings"]):
        low, high = finding["low"], finding["high"]
        between = "-" if low is None else f"{low:.4g} to {high:.4g}"
        estimate = "-" if finding["estimate"] is None else f"{finding['estimate']:.4g}"
        p = "-" if finding["p"] is None else f"{finding['p']:.2g}"
        after = f"{adjusted[name, i]:.2g}" if (name, i) in adjusted else "-"
        verdict = finding["verdict"] if finding["decides"] else f"({finding['verdict']})"
        pairs = finding["pairs"] or "-"
        lines.append(
            f"| {_cell(finding['statement'])} | {estimate} | {between} | {pairs} | {p} | {after} | {verdict} |"
        )
    took = _took(outcome, 60, "minutes")
    said = f" They took {took}." if took else ""
    lines += ["", f"{outcome['trials']} trials, {outcome['seeds']} seeds.{said} Not done: {outcome['not_done']}"]
    if outcome["diverged"]:
        lines += ["", f"Diverged: {'; '.join(outcome['diverged'])}"]
    if outcome["explained"]:
        lines += ["", outcome["explained"]]
    return [*lines, ""]


def _without_verdict(shown: Sequence[str]) -> list[str]:
    """Return in a sentence the studies that can be run and have no outcome among these."""
    others = [name for name in study_names() if name not in shown]
    if not others:
        return []
    names = ", ".join(f"`{name}`" for name in others)
    words = f"Without a verdict, for they were not run at a scale that could give one: {names}."
    return [*textwrap.wrap(words, 120), ""]


def _took(seconds: Mapping[str, float], unit: int, name: str) -> str:
    """Return in words what trials took: of a processor, and by the clock where that is all that was kept."""
    own, clock = seconds["cpu_seconds"] / unit, seconds["seconds"] / unit
    by_clock = f"{clock:.1f} {name} by the clock, beside other work"
    if not own:
        return by_clock if clock else ""
    return f"{own:.1f} {name} of a processor" + (f", and those timed otherwise {by_clock}" if clock else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def write_gallery(folder: Path) -> Path:
    """Write the page beside the folder of outcomes, under its name, and draw every outcome anew."""
    for path in folder.glob("*.json"):
        if path.name.split(".")[1] in _SCALES and path.name.count(".") == 2:
            write_text(path.with_suffix(".svg"), picture(json.loads(path.read_text())))
    page = folder.with_suffix(".md")
    write_text(page, gallery(outcomes_in(folder), folder.name))
    return page


def write_readme(file: Path, folder: Path) -> None:
    """Put the count of verdicts between the README's markers."""
    page = f"[gallery](docs/{folder.name}.md)"
    words = f"{summary(outcomes_in(folder))} The {page} has the rules, the figures and the numbers."
    write_text(file, insert_between(file.read_text(), "studies", "\n".join(textwrap.wrap(words, 120))))
