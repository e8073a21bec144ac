"""A long training and many predictions in one process: memory, descriptors and threads stay what they were."""

import os
from pathlib import Path
from typing import Any

from torture.process import Ended, child, wait
from torture.runs import last_words

__all__ = ["soak"]

STEPS, PREDICTIONS = 50_000, 5_000
ALLOWED = {"MiB": 20.0, "descriptors": 0, "threads": 0}
"""How much more there may be at the end than after the first tenth."""


def soak(folder: Path, share: float, seed: int) -> dict[str, Any]:
    """Take 50,000 steps and 5,000 predictions times the share."""
    folder.mkdir(parents=True)
    figures: dict[str, Any] = {"steps": 0, "predictions": 0, "grown": 0, "words": []}
    for what, work, number in (
        ("steps", _steps, max(500, round(STEPS * share))),
        ("predictions", _predictions, max(100, round(PREDICTIONS * share))),
    ):
        written = folder / what
        code = wait(child(lambda: work(written, number), folder / "log"), limit=3600)
        if code:
            raise Ended(f"{what}: {last_words(folder / 'log')}")
        more = dict(zip(ALLOWED, map(float, written.read_text().split()), strict=True))
        figures[what] = number
        for unit, amount in more.items():
            figures[f"{unit} more after {what}"] = amount
            if amount > ALLOWED[unit]:
                figures["grown"] += 1
                figures["words"].append(f"{amount:g} {unit} more after {number} {what}")
    return figures


def _now() -> tuple[float, int, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) / 1024, len(os.listdir("/proc/self/fd")), int(status["Threads"])


def _write(path: Path, before: tuple[float, int, int], after: tuple[float, int, int]) -> int:
    path.write_text(" ".join(str(max(0, b - a)) for a, b in zip(before, after, strict=True)))
    return 0


def _steps(path: Path, number: int) -> int:
    from pyro_bnn.inference.svi import Callback, FitState
    from pyro_bnn.runs.train import train
    from torture.kinds import recipe_of

    seen: list[tuple[float, int, int]] = []

    class Watch(Callback):
        def epoch(self, state: FitState) -> None:
            if state.step >= number // 10:  # the first of these, and the last
                seen[1:] = [_now()]

    recipe = recipe_of("svi").changed({"epochs": number // 9, "batch_size": 20, "val_fraction": 0.1})
    train(recipe, out=path.parent / "run", progress=False, report=False, callbacks=[Watch()])
    return _write(path, seen[0], seen[-1])


def _predictions(path: Path, number: int) -> int:
    import pyro_bnn as pb

    posterior, before = pb.load("lenet5-mnist-mini"), _now()
    x = pb.load_data("mnist-mini").test.x[:20]
    for i in range(number):
        posterior.predict(x, num_samples=2, seed=i)
        if i == number // 10:
            before = _now()
    return _write(path, before, _now())
