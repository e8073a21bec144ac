"""
SIGKILL at random moments of every kind of run, again and again until it is finished: the same bits as without.

A moment is drawn uniformly over the time that the whole run takes, so that some fall before the first file and some
after the last. A run that cannot be gone on with is stuck; one that ends with other bits is lost.
"""

import functools
import random
import shutil
import time
from pathlib import Path
from typing import Any

from torture.kinds import KINDS
from torture.process import GONE, Ended, child, wait
from torture.runs import check_same, fingerprint, finish, last_words, train_in

__all__ = ["kills"]

IN_A_ROW = 5
"""Kills of one run, at most; then it is let be."""


def kills(folder: Path, share: float, seed: int) -> dict[str, Any]:
    """Kill 500 times the share, of every kind as often; a run that ends before its moment came is not counted."""
    total, draw = max(1, round(500 * share)), random.Random(seed)
    kinds = list(KINDS)[: max(1, min(len(KINDS), total))]
    figures: dict[str, Any] = {"kinds": len(kinds), "kills": 0, "runs": 0, "other bits": 0, "stuck": 0, "words": []}
    for i, kind in enumerate(kinds):
        wanted_kills = total // len(kinds) + (i < total % len(kinds))
        place = folder / kind.replace(" ", "-")
        place.mkdir(parents=True)
        finish(place / "warm", kind, place / "log")
        began = time.monotonic()
        finish(place / "whole", kind, place / "log")
        seconds = time.monotonic() - began
        wanted = fingerprint(place / "whole", kind)
        done, number = 0, 0
        while done < wanted_kills and number < 10 * wanted_kills:
            run, number = place / f"run-{number}", number + 1
            try:
                for _ in range(min(IN_A_ROW, wanted_kills - done)):
                    trainer = child(functools.partial(train_in, run, kind), place / "log")
                    code = wait(trainer, draw.random() * seconds)
                    if code == 0:
                        break
                    if code != GONE:
                        raise Ended(f"{kind}: exit code {code}: {last_words(place / 'log')}")
                    done += 1
                    figures["kills"] += 1
                finish(run, kind, place / "log")
                figures["runs"] += 1
                check_same(fingerprint(run, kind), wanted, kind)
            except Ended as error:
                figures["other bits" if "another" in str(error) else "stuck"] += 1
                figures["words"].append(str(error))
                continue
            shutil.rmtree(run)
    return figures
