"""Model cards as text: the Markdown of one card, and the README's table of all. Pure functions of what is in a card."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyro_bnn.common.shown import in_markdown, visible

__all__ = ["markdown", "readme_table"]


def _percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f} %"


def _with_sd(column: Mapping[str, float], key: str, percent: bool = False) -> str:
    factor, digits = (100, 2) if percent else (1, 4)
    if key not in column:
        return "-"
    text = f"{factor * column[key]:.{digits}f}"
    if f"{key}_sd" in column:
        text += f" ± {factor * column[f'{key}_sd']:.{digits}f}"
    return f"{text} %" if percent else text


def _code(text: object) -> str:
    """Return a text as it stands between backticks."""
    return " ".join(visible(text, keep="\n\t").replace("`", "'").split())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _null(column: Mapping[str, Any]) -> str:
    null = column["ece_null"]
    return f"{column['ece']:.4f} (by chance {null['mean']:.4f}, 95 % below {null['upper']:.4f})"


_COLUMNS = (("plug_in", "plug-in"), ("one_draw", "1 sample (mean ± sd)"), ("s_draws", "{s} samples"))
_LINES = (
    ("accuracy", "accuracy", True),
    ("pred_nll", "predictive NLL", False),
    ("brier", "Brier score", False),
    ("ece", "ECE (15 bins)", False),
    ("confidence", "confidence", True),
    ("epistemic", "mutual information", False),
)


def markdown(card: Mapping[str, Any]) -> str:
    """Return a card as Markdown."""
    ship = next(row for row in card["results"] if row["seed"] == card["shipped"]["seed"])
    present = [(key, label.format(s=card["num_samples"])) for key, label in _COLUMNS if key in ship]
    origin = {key: in_markdown(value) for key, value in card["made"].items()}
    data = card["data"]
    parts = [
        f"# {in_markdown(card['title'])}\n",
        f"{in_markdown(card['description'])}.\n",
        f"Source: {in_markdown(card['source'])}.\n",
        f"```\n{_code(card['command'])}\n```\n",
        f"Shipped: seed {card['shipped']['seed']} of {', '.join(map(str, card['seeds']))}; "
        f"{card['shipped']['bytes']:,} bytes. Settings tried on validation: {_number_tried(card)}. "
        f"Data: {in_markdown(data['name'])}, {data['train']:,} rows to train, {data['val']:,} to validate, "
        f"{data['test']:,} to test.\n",
        "## Results on test, shipped seed\n",
        _table(
            ["", *(label for _, label in present)],
            [[label, *(_with_sd(ship[key], name, unit) for key, _ in present)] for name, label, unit in _LINES],
        ),
        f"ECE: {_null(ship['s_draws'])}.\n",
        "## All seeds\n",
        _seeds(card),
    ]
    parts += ["## Deterministic twin\n", _twin(card) if "twin" in card else "None was trained.\n"]
    parts += _tried(card)
    if "curve" in card:
        parts += ["## Learning curves\n", f"![Validation NLL and accuracy by epoch, every seed]({card['curve']})\n"]
    parts += ["## Telling 2,000 unfamiliar inputs apart (AUROC, shipped seed)\n", _unfamiliar(card, ship)]
    parts.append(
        f"Made on {origin['date']} with pyro_bnn {origin['pyro_bnn']}, torch {origin['torch']}, pyro {origin['pyro']}, "
        f"Python {origin['python']}; {origin['machine']}; {_time(card)} of training per seed.\n"
    )
    return "\n".join(parts)


def _time(card: Mapping[str, Any]) -> str:
    values = [row["seconds"] for row in card["results"] if row["seconds"] is not None]
    if not values:
        return "an unknown time"
    seconds = sum(values) / len(values)
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _seeds(card: Mapping[str, Any]) -> str:
    rows = []
    for row in card["results"]:
        s = row["s_draws"]
        mark = " (shipped)" if row["seed"] == card["shipped"]["seed"] else ""
        rows.append([f"{row['seed']}{mark}", _percent(s["accuracy"]), f"{s['pred_nll']:.4f}", f"{s['ece']:.4f}"])
    if len(card["results"]) > 1:
        mean = card["mean"]["s_draws"]
        cells = [_with_sd(mean, "accuracy", True), _with_sd(mean, "pred_nll"), _with_sd(mean, "ece")]
        rows.append(["mean ± sd", *cells])
    return _table(["seed", "accuracy", "predictive NLL", "ECE"], rows)


def _twin(card: Mapping[str, Any]) -> str:
    twin = card["twin"]
    rows = []
    for row in twin["results"]:
        for kind in ("raw", "scaled"):
            if kind in row:
                seed = (
                    f"{row['seed']}, T = {row[kind]['temperature']:.3f}" if kind == "scaled" else f"{row['seed']}, raw"
                )
                m = row[kind]
                rows.append([seed, _percent(m["accuracy"]), f"{m['pred_nll']:.4f}", f"{m['ece']:.4f}"])
    tried = f"Settings tried on validation: {_number_tried(twin)}.\n\n"
    text = f"`{_code(twin['command'])}`\n\n{tried}" + _table(["seed", "accuracy", "NLL", "ECE"], rows)
    for kind, label in (("raw", "raw"), ("scaled", "temperature-scaled")):
        if kind in card["differences"]:
            d = card["differences"][kind]
            text += (
                f"\nPosterior minus {label} twin, paired: accuracy {_difference(d['accuracy'], 100)} points, NLL "
                f"{_difference(d['pred_nll'])}.\n"
            )
    return text


_TRIED = (
    *("differs in", "seed", "epochs", "validation NLL", "minus the card's, paired (± standard error)"),
    "validation ECE (95 % by chance below)",
)
_GIVEN_UP = "†"


def _number_tried(card: Mapping[str, Any]) -> int:
    return len(card["tried"]) if "tried" in card else int(card.get("tuning_runs", 1))


def _tried(card: Mapping[str, Any]) -> list[str]:
    """Return the tables of the settings tried, of the posterior and of its twin, where there was a choice."""
    tables = [("Settings tried", card.get("tried", ()))]
    tables += [("Settings tried, twin", card.get("twin", {}).get("tried", ()))]
    parts = []
    for title, rows in tables:
        if len(rows) > 1:
            cells = [
                [
                    " ".join(f"`{_code(setting)}`" for setting in row["settings"]) or "**as in the card**",
                    *_tried_numbers(row),
                ]
                for row in rows
            ]
            kept = [i for i in range(len(_TRIED)) if any(line[i] for line in cells)]
            parts += [
                f"## {title}\n",
                _table([_TRIED[i] for i in kept], [[line[i] for i in kept] for line in cells]),
            ]
            if _calibrated_choice(rows):
                parts.append("Chosen: the lowest NLL of those whose ECE is inside its null.\n")
            if any("given_up" in row for row in rows):
                parts.append(f"{_GIVEN_UP} Given up before its end: the NLL of its best epoch.\n")
    return parts


def _calibrated_choice(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the chosen setting is not the first by NLL, but the first of those that are calibrated."""
    inside = [row for row in rows if "val_ece" in row and row["val_ece"] <= row["val_ece_upper"]]
    return bool(rows[0]["settings"] and inside and not inside[0]["settings"])


def _tried_numbers(row: Mapping[str, Any]) -> list[str]:
    nll = f"{row['val_nll']:.4f}{_GIVEN_UP if 'given_up' in row else ''}"
    paired = f"{row['difference']:+.4f} ± {row['se']:.4f}" if "difference" in row else ""
    ece = f"{row['val_ece']:.4f} ({row['val_ece_upper']:.4f})" if "val_ece" in row else ""
    return [str(row["seed"]), str(row["epochs"]), nll, paired, ece]


def _difference(numbers: Mapping[str, float], factor: float = 1) -> str:
    digits = 2 if factor == 100 else 4
    seeds = f", {factor * numbers['se_seeds']:.{digits}f} over seeds" if "se_seeds" in numbers else ""
    error = f"standard error {factor * numbers['se_rows']:.{digits}f} over rows{seeds}"
    return f"{factor * numbers['mean']:+.{digits}f} ({error})"


def _unfamiliar(card: Mapping[str, Any], ship: Mapping[str, Any]) -> str:
    twin = next((row for row in card.get("twin", {}).get("results", ()) if row["seed"] == ship["seed"]), None)
    rows = []
    for name, scores in ship["ood"].items():
        mutual = scores.get("mutual_information")
        rows.append(
            [
                in_markdown(name),
                f"{scores['entropy']:.4f}",
                "-" if mutual is None else f"{mutual:.4f}",
                *([] if twin is None else [f"{twin['ood'][name]['entropy']:.4f}"]),
            ]
        )
    return _table(["", "entropy", "mutual information", *([] if twin is None else ["twin, entropy"])], rows)


def _mean_auroc(card: Mapping[str, Any], name: str) -> float:
    rows = [row["ood"][name]["entropy"] for row in card["results"]]
    return float(sum(rows) / len(rows))


def readme_table(cards: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the zoo: a row per card, means over seeds."""
    rows = []
    for card in cards:
        mean, seeds = card["mean"]["s_draws"], len(card["results"])
        nulls = [row["s_draws"]["ece"] <= row["s_draws"]["ece_null"]["upper"] for row in card["results"]]
        twin = card.get("twin", {}).get("mean", {})
        scaled = "-" if "scaled" not in twin else f"{twin['raw']['pred_nll']:.4f} → {twin['scaled']['pred_nll']:.4f}"
        far = ", ".join(f"{name} {_mean_auroc(card, name):.3f}" for name in card["results"][0]["ood"])
        rows.append(
            [
                f"[`{card['name']}`](pyro_bnn/weights/{card['name']}/card.md)",
                f"{card['eta']:g}",
                _with_sd(mean, "accuracy", True),
                _with_sd(mean, "pred_nll"),
                f"{mean['ece']:.4f} ({sum(nulls)}/{seeds})",
                f"{mean['epistemic']:.4f}",
                scaled,
                far,
                f"{card['shipped']['bytes'] / 1000:.0f} kB",
            ]
        )
    head = ["posterior", "eta", "accuracy", "NLL", "ECE (inside its null)", "mutual information"]
    return _table([*head, "twin's NLL → scaled", "AUROC by entropy", "size"], rows)
