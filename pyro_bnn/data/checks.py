"""What is asked of data at the door. Each check names the value, what is allowed and the remedy in one line."""

import difflib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["check_class_names", "check_finite", "check_labels", "check_weights", "check_weights_shape", "suggest"]


def check_finite(values: Tensor, name: str) -> None:
    """Refuse NaN and infinity, naming the first row that holds either."""
    if not values.is_floating_point() or values.numel() == 0:
        return
    if not bool(torch.isfinite(torch.stack(torch.aminmax(values))).all()):  # one pass; NaN comes through
        rows = (~torch.isfinite(values)).reshape(len(values), -1).any(1).nonzero()[:, 0]
        raise ValueError(
            f"{name} holds NaN or infinity in {len(rows)} of {len(values)} rows (first: row {int(rows[0])}); "
            "every value must be finite: drop or impute those rows"
        )


def check_weights_shape(weights: Tensor, n: int, name: str = "weights") -> None:
    """Refuse sample weights that are not one number per row."""
    if weights.shape != (n,):
        raise ValueError(f"{name} has shape {tuple(weights.shape)}; give one number per row: shape ({n},)")


def check_weights(weights: Tensor, n: int, name: str = "weights") -> None:
    """Refuse sample weights that are not n finite numbers >= 0."""
    check_weights_shape(weights, n, name)
    good = torch.isfinite(weights) & (weights >= 0)
    if not bool(good.all()):
        row = int((~good).nonzero()[0, 0])
        raise ValueError(f"{name}[{row}] is {float(weights[row])}; sample weights must be finite and >= 0: correct it")


def check_labels(labels: Tensor, name: str, num_classes: int | None = None, *, every_class: bool = False) -> int:
    """
    Refuse labels (N,) outside 0..K-1, and with `every_class` a class without a row; return K (largest label + 1).

    :param labels: whole numbers (N,).
    :param name: what the message calls them.
    :param num_classes: K; default what the labels reach.
    """
    if labels.ndim != 1:
        raise ValueError(
            f"{name} has shape {tuple(labels.shape)}; class labels have shape (N,): take argmax(1) of one-hot rows"
        )
    if labels.is_floating_point():
        bad = labels != labels.round()
        if bool(bad.any()):
            row = int(bad.nonzero()[0, 0])
            raise ValueError(
                f"{name}[{row}] is {float(labels[row])}; class labels are whole numbers 0..K-1: "
                "correct it, or say task='regression' if the targets are real numbers"
            )
    largest = int(labels.max())
    k = largest + 1 if num_classes is None else num_classes
    out = (labels < 0) | (labels >= k)
    if bool(out.any()):
        row = int(out.nonzero()[0, 0])
        raise ValueError(
            f"{name}[{row}] is {int(labels[row])}; class labels must lie in 0..{k - 1}: relabel the classes 0..K-1 "
            "(K is read off y_train, or off class_names if the file has them)"
        )
    if every_class:
        present = torch.unique(labels)
        if len(present) < k:
            gap = present != torch.arange(len(present), dtype=present.dtype, device=present.device)
            missing = int(gap.nonzero()[0, 0]) if bool(gap.any()) else len(present)
            raise ValueError(
                f"class {missing} has no row in {name} ({len(present)} of {k} classes have one); "
                "every class needs at least one: relabel the classes 0..K-1 or add rows"
            )
        if k < 2:
            raise ValueError(f"{name} holds the single class 0; classification needs at least two classes")
    return k


def check_class_names(names: Sequence[str], where: str) -> None:
    """Refuse two classes of one name: what is said about classes is said by name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{where} gives two classes the name {name!r:.80}: give each class a name of its own")
        seen.add(name)


def suggest(value: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest known name, or nothing."""
    near = difflib.get_close_matches(value.lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
