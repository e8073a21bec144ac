"""Model cards as text: the Markdown of one card, and the README's table of all. Pure functions of what is in a card."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyro_bnn.cards.tuning import number_tried
from pyro_bnn.common.shown import in_markdown, visible

__all__ = ["markdown", "readme_table", "verdict"]


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
    if card.get("unequal"):
        text += f"\n**Not the same chances**: the posterior is {', '.join(map(in_markdown, card['unequal']))}.\n"
    for kind, label in _COMPARED:
        if kind in card["differences"]:
            d = card["differences"][kind]
            text += (
                f"\n{label}, paired: accuracy {_difference(d['accuracy'], 100)} points, NLL "
                f"{_difference(d['pred_nll'])}.\n"
            )
    return text


_COMPARED = (
    ("raw", "Posterior minus raw twin"),
    ("scaled", "Posterior minus temperature-scaled twin"),
    ("both_scaled", "Temperature-scaled posterior minus temperature-scaled twin"),
)

_TRIED = (
    *("differs in", "seed", "epochs", "validation NLL", "minus the card's, paired (± standard error)"),
    "validation ECE (95 % by chance below)",
)
_GIVEN_UP = "†"


def _number_tried(card: Mapping[str, Any]) -> str:
    total, before = number_tried(card), sum(making["tried"] for making in card.get("earlier", ()))
    return f"{total}, {before} of them for earlier cards" if before else str(total)


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
    sides = [("", ship), *([] if twin is None else [("twin, ", twin)])]
    wanted = [
        (side, row, score, words)
        for side, row in sides
        for score, words in _IN_FRONT
        if any(score in numbers for numbers in row["ood"].values())
    ]
    rows = [
        [
            in_markdown(name),
            *(f"{row['ood'][name][score]:.4f}" if score in row["ood"][name] else "-" for _, row, score, _ in wanted),
        ]
        for name in ship["ood"]
    ]
    return _table(["", *(f"{side}{words}" for side, _, _, words in wanted)], rows)


_IN_FRONT = (
    ("entropy", "entropy"),
    ("mutual_information", "mutual information"),
    ("confidence", "mean confidence"),
    ("share_above_90", "share above .9"),
)


def _mean_of(results: Sequence[Mapping[str, Any]], set_name: str, score: str) -> str:
    """Return the mean over seeds of a score in front of unfamiliar inputs; a dash where it was not measured."""
    values = [row["ood"].get(set_name, {}).get(score) for row in results]
    return "–" if None in values or not values else f"{sum(values) / len(values):.3f}"


def verdict(card: Mapping[str, Any]) -> str:
    """
    Return what uncertainty buys against the temperature-scaled twin, in one word: better, worse, or level.

    Level is within two standard errors of the paired NLL, over rows or over seeds, whichever is larger.
    """
    differences = card.get("differences", {})
    if "scaled" not in differences:
        return "no twin"
    d = differences.get("both_scaled", differences["scaled"])["pred_nll"]
    error = max(d["se_rows"], d.get("se_seeds", 0.0))
    return "level" if abs(d["mean"]) <= 2 * error else "better" if d["mean"] < 0 else "worse"


_NOISE = "Gaussian noise"
_HEAD = (
    *("", "accuracy", "NLL", "NLL scaled", "ECE (inside its null)", "mutual information"),
    *("AUROC of noise", "sure of noise", "scaled NLL minus the twin's", "size"),
)


def readme_table(cards: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the zoo, a row per posterior and one for its twin, means over seeds; and what it says."""
    rows = []
    for card in cards:
        mean, results = card["mean"], card["results"]
        mark = "†" if card.get("unequal") else ""
        rows.append(
            [
                f"[`{card['name']}`](pyro_bnn/weights/{card['name']}/card.md), eta {card['eta']:g}",
                *_scores(mean["s_draws"], mean.get("scaled"), [row["s_draws"] for row in results]),
                f"{mean['s_draws']['epistemic']:.4f}",
                *(_mean_of(results, _NOISE, score) for score in ("entropy", "confidence")),
                _gain(card) + mark,
                f"{card['shipped']['bytes'] / 1000:.0f} kB",
            ]
        )
        twin = card.get("twin")
        if twin is not None:
            noise = (_mean_of(twin["results"], _NOISE, score) for score in ("entropy", "confidence"))
            scores = _scores(twin["mean"]["raw"], twin["mean"].get("scaled"), [row["raw"] for row in twin["results"]])
            rows.append(["↳ its twin", *scores, "–", *noise, "", ""])
    return _table(_HEAD, rows) + "\n" + _in_words(cards)


def _scores(
    raw: Mapping[str, float], scaled: Mapping[str, float] | None, seeds: Sequence[Mapping[str, Any]]
) -> tuple[str, ...]:
    inside = sum(row["ece"] <= row["ece_null"]["upper"] for row in seeds)
    return (
        _with_sd(raw, "accuracy", True),
        _with_sd(raw, "pred_nll"),
        "–" if scaled is None else f"{scaled['pred_nll']:.4f}",
        f"{raw['ece']:.4f} ({inside}/{len(seeds)})",
    )


def _gain(card: Mapping[str, Any]) -> str:
    differences = card.get("differences", {})
    if "scaled" not in differences:
        return "–"
    d = differences.get("both_scaled", differences["scaled"])["pred_nll"]
    return f"{d['mean']:+.4f} ± {max(d['se_rows'], d.get('se_seeds', 0.0)):.4f}"


_WORDS = {
    "better": "Better than the scaled twin beyond two standard errors",
    "level": "Level with it: uncertainty buys nothing in NLL",
    "worse": "Worse than it",
}


def _in_words(cards: Sequence[Mapping[str, Any]]) -> str:
    """Return which posteriors are better than their twins, which are not, and whose twins had other chances."""
    sentences = []
    for word, text in _WORDS.items():
        names = [f"`{card['name']}`" for card in cards if verdict(card) == word]
        if names:
            sentences.append(f"{text}: {', '.join(names)}.")
    other = [f"`{card['name']}` ({', '.join(card['unequal'])})" for card in cards if card.get("unequal")]
    if other:
        sentences.append(f"† The twin had other chances, so that this is no comparison: {'; '.join(other)}.")
    return " ".join(sentences) + "\n"
