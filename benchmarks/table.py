"""The results as text for a terminal, and as one Markdown table for the README."""

from typing import Any

from benchmarks.contenders import BASE, CONTENDERS, OURS
from benchmarks.cost import as_text as cost_as_text

COLUMNS = {
    "lenet5": "LeNet-5",
    "resnet20": "ResNet-20",
    "mlp100": "100 layers",
    "wide-400": "wide-400",
    "wide-1200": "wide-1200",
    "wide-3000": "wide-3000",
    "encoder": "encoder",
    "vgg16": "VGG-16",
    "predict": "100 draws",
    "predict-wide": "wide-3000, 10 draws",
}


BESIDE = ("layers", "first")
"""Work with contenders of its own: a line below the table."""


def _beside(work: dict[str, Any]) -> str:
    """Return one kind of work as a line: who needed what, ratio of minima and median ratio."""
    rows = sorted(work["contenders"].items(), key=lambda item: item[1]["ratio_of_minima"])
    said = (f"{name} {n['ratio_of_minima']:.2f} ({n['median_ratio']:.2f})" for name, n in rows if name != work["base"])
    return f"{work['title']}: {', '.join(said)}."


def _of_weights(rows: list[dict[str, Any]]) -> str:
    """Return what many weights cost, as a line."""
    many = [row for row in rows if row["weights"] > 4e5]
    most = [row for row in rows if row["weights"] > 1e7]
    extra, memory = [row["extra_ns"] for row in many], [row["own_mb"] / row["needed_mb"] for row in most]
    return (
        f"An MLP of {many[0]['weights'] / 1e6:.1f} to {many[-1]['weights'] / 1e6:.0f} million weights: a step of `fit` "
        f"takes {min(extra):.1f} to {max(extra):.1f} ns a weight more than the deterministic one; its peak memory is, "
        f"from {most[0]['weights'] / 1e6:.0f} million on, {min(memory):.2f} to {max(memory):.2f} of what parameters, "
        "gradients and Adam's moments need, with `BNN(..., keep_values=False)`, where the network's own tensors, which "
        "nobody reads any more, are given back."
    )


def as_text(work: dict[str, Any]) -> str:
    """Return one kind of work as a table for a terminal."""
    lines = [f"\n{work['title']}"]
    if "rows" in work:
        return "\n".join([*lines, cost_as_text(work)])
    if "contenders" not in work:
        lines += [f"  {name:28s} {mb:8.0f}" for name, mb in work["training_mb"].items()]
        draws = ", ".join(f"{s} draws {mb:.0f}" for s, mb in work["prediction_mb_by_draws"].items())
        lines.append(f"  predicting, pyro-bnn: {draws}")
    else:
        head = ("min ms", "median ms", "ratio of minima", "median ratio", "quartiles")
        lines.append("  {:28s} {:>9s} {:>10s} {:>16s} {:>13s}   {}".format("", *head))
        for name, n in sorted(work["contenders"].items(), key=lambda item: item[1]["ratio_of_minima"]):
            lines.append(
                f"  {name:28s} {n['min_ms']:9.2f} {n['median_ms']:10.2f} {n['ratio_of_minima']:16.3f} "
                f"{n['median_ratio']:13.3f}   {n['lower_quartile']:.3f} - {n['upper_quartile']:.3f}"
            )
    lines += [f"  {name:28s} no number: {why}" for name, why in work["failed"].items()]
    return "\n".join(lines)


def _cell(results: dict[str, Any], kind: str, title: str) -> str:
    work = results["work"].get(kind)
    if work is None or title not in work["contenders"]:
        return "–" if work is None or title not in work["failed"] else "fails"
    numbers = work["contenders"][title]
    text = f"{numbers['ratio_of_minima']:.2f} ({numbers['median_ratio']:.2f})"
    return f"**{text}**" if title == OURS[0].title else text


def as_markdown(results: dict[str, Any]) -> str:
    """Return the README's table: ratios of minima to plain PyTorch, the median of the ratios in brackets."""
    machine, versions = results["machine"], results["machine"]["versions"]
    kinds = [kind for kind in COLUMNS if kind in results["work"]]
    lines = [
        "| | " + " | ".join(COLUMNS[kind] for kind in kinds) + " |",
        "|---" * (len(kinds) + 1) + "|",
    ]
    for contender in CONTENDERS:
        version = "" if contender is BASE or contender in OURS else f" {versions[contender.distribution]}"
        name = f"**{contender.title}**" if contender is OURS[0] else contender.title + version
        lines.append(f"| {name} | " + " | ".join(_cell(results, kind, contender.title) for kind in kinds) + " |")
    lines += [
        "",
        f"Time relative to the same network in plain PyTorch {versions['torch']} with fused Adam: ratio of minima over "
        f"paired rounds, median ratio in brackets ({machine['threads']} threads, {machine['cpu']}, {machine['date']}). "
        "Columns of draws are predictions, of 10,000 images by LeNet-5 and 1,000 by wide-3000; the others are training "
        "steps. Rounds: " + ", ".join(f"{results['work'][kind]['rounds']}" for kind in kinds) + ".",
    ]
    earlier = [
        f"{COLUMNS[kind]} on {date}"
        for kind in kinds
        if (date := results["work"][kind].get("date", machine["date"])) != machine["date"]
    ]
    if earlier:
        lines[-1] += f" Measured in an earlier run, on another machine of that kind: {', '.join(earlier)}."
    if "cost" in results["work"]:
        lines += ["", _of_weights(results["work"]["cost"]["rows"])]
    for kind in BESIDE:
        if kind in results["work"]:
            lines += ["", _beside(results["work"][kind])]
    failed = [
        f"{title} on {COLUMNS[kind]} ({why})"
        for kind in kinds
        for title, why in results["work"][kind]["failed"].items()
    ]
    if failed:
        lines += ["", "Without a number: " + "; ".join(failed) + "."]
    return "\n".join(lines)
