"""Trainers that are started together: on one folder a single one trains, without a folder each has its own."""

from pathlib import Path
from typing import Any

from torture.process import Ended, child, wait
from torture.runs import check_same, fingerprint, finish, last_words, train_in

__all__ = ["together"]

TRAINERS = 4


def together(folder: Path, share: float, seed: int) -> dict[str, Any]:
    """Start four at once, 20 times the share."""
    figures: dict[str, Any] = {"rounds": 0, "refused": 0, "shared": 0, "words": []}
    folder.mkdir(parents=True)
    finish(folder / "whole", "svi", folder / "log")
    wanted = fingerprint(folder / "whole", "svi")
    for i in range(max(1, round(20 * share))):
        try:
            _on_one_folder(folder / f"round-{i}", wanted, figures)
            _each_its_own(folder / f"own-{i}", wanted)
        except Ended as error:
            figures["shared"] += 1
            figures["words"].append(str(error))
        figures["rounds"] += 1
    return figures


def _on_one_folder(place: Path, wanted: dict[str, Any], figures: dict[str, Any]) -> None:
    place.mkdir()
    logs = [place / f"log-{j}" for j in range(TRAINERS)]
    codes = [wait(pid) for pid in [child(lambda: train_in(place / "run", "svi"), log) for log in logs]]
    for code, log in zip(codes, logs, strict=True):
        if code and "is being trained by process" not in last_words(log):
            raise Ended(f"exit code {code}: {last_words(log)}")
        figures["refused"] += bool(code)
    if all(codes):
        raise Ended("none of them trained")
    check_same(fingerprint(place / "run", "svi"), wanted, "svi")


def _each_its_own(place: Path, wanted: dict[str, Any]) -> None:
    place.mkdir()

    def work() -> int:
        from pyro_bnn.runs.folder import claim_next
        from pyro_bnn.runs.train import train
        from torture.kinds import recipe_of

        train(recipe_of("svi"), out=lambda: claim_next(place / "runs", "same"), progress=False, report=False)
        return 0

    pids = [child(work, place / "log") for _ in range(TRAINERS)]
    if any(wait(pid) for pid in pids):
        raise Ended(last_words(place / "log"))
    runs = sorted((place / "runs").iterdir())
    if len(runs) != TRAINERS:
        raise Ended(f"another number of folders, {len(runs)}")
    for run in runs:
        check_same(fingerprint(run, "svi"), wanted, "svi")
