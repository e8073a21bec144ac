"""Records that were never run, to see what a study's judge says of them."""

from collections.abc import Callable, Mapping
from typing import Any

from pyro_bnn.studies.study import Results, Scale, Study, Trial

__all__ = ["check_pairs", "made_up"]


def made_up(study: Study, record: Callable[[Trial], Mapping[str, Any]], scale: Scale = "cpu") -> Results:
    """Return the results of a study's design whose trials left what `record` says."""
    trials = study.design(scale)
    return Results(trials, {trial.key(): record(trial) for trial in trials})


def check_pairs(study: Study) -> None:
    """Every cell has the same seeds, at least 5 of them but at the smallest scale, and no two trials are the same."""
    for scale in study.scales:
        trials = study.design(scale)
        cells: dict[str, list[int]] = {}
        for trial in trials:
            cells.setdefault(trial.cell, []).append(trial.seed)
        least = 2 if scale == "smoke" else 5
        assert {tuple(sorted(seeds)) for seeds in cells.values()} == {tuple(range(len(next(iter(cells.values())))))}
        assert all(len(seeds) >= least for seeds in cells.values()), scale
        assert len({trial.key() for trial in trials}) == len(trials), scale
