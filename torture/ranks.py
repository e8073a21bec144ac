"""
One of two ranks is killed at a random moment: the other ends with words, the folder is whole, and both go on.

Half of the runs are gone on with by two ranks, to the same bits as a run that nobody killed, and half by one process or
by three. With torchrun itself (--max-restarts), which starts all ranks again when one has died, some more.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torture.kinds import KINDS, recipe_of
from torture.process import GONE, Ended, child, wait
from torture.runs import check_same, fingerprint, last_words, train_in

__all__ = ["rank_kills"]

_KINDS = ("svi", "report", "hwa", "ensemble of hwa", "score function", "adabayes in turns", "divergence")


def rank_kills(folder: Path, share: float, seed: int) -> dict[str, Any]:
    """Kill a rank 100 times the share, and one under torchrun 10 times the share."""
    total, draw = max(1, round(100 * share)), random.Random(seed)
    kinds = _KINDS[: min(len(_KINDS), total)]
    figures: dict[str, Any] = {"kills": 0, "runs": 0, "other bits": 0, "stuck": 0, "restarts": 0, "words": []}
    for i, kind in enumerate(kinds):
        place = folder / kind.replace(" ", "-")
        place.mkdir(parents=True)
        began = time.monotonic()
        _finish(place / "whole", kind, place / "log", 2)
        seconds = time.monotonic() - began
        wanted = fingerprint(place / "whole", kind)
        for number in range(total // len(kinds) + (i < total % len(kinds))):
            try:
                figures["kills"] += _killed(place / f"run-{number}", kind, place / "log", draw, seconds)
                ranks = 2 if number % 2 == 0 else draw.choice((1, 3))
                _finish(place / f"run-{number}", kind, place / "log", ranks)
                found = fingerprint(place / f"run-{number}", kind)
                if ranks == 2:
                    check_same(found, wanted, kind)
                figures["runs"] += 1
            except Ended as error:
                figures["other bits" if "another" in str(error) else "stuck"] += 1
                figures["words"].append(str(error))
            shutil.rmtree(place / f"run-{number}", ignore_errors=True)
        if i == 0:
            for number in range(max(1, round(10 * share))):
                try:
                    figures["restarts"] += _restarted(place / f"torchrun-{number}", kind, draw)
                    check_same(fingerprint(place / f"torchrun-{number}", kind), wanted, kind)
                except Ended as error:
                    figures["other bits" if "another" in str(error) else "stuck"] += 1
                    figures["words"].append(str(error))
    return figures


def _start(run: Path, kind: str, log: Path, ranks: int) -> list[int]:
    """Start the ranks of a training, in children; return their process ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def work(rank: int) -> int:
        from pyro_bnn.runs.ranks import process_group

        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with process_group("cpu", timeout=60):
            return train_in(run, kind)

    if ranks == 1:
        return [child(lambda: train_in(run, kind), log)]
    return [child(lambda: work(rank), log) for rank in range(ranks)]


def _finish(run: Path, kind: str, log: Path, ranks: int) -> None:
    codes = [wait(pid) for pid in _start(run, kind, log, ranks)]
    if any(codes):
        raise Ended(f"{kind}: not to be gone on with by {ranks}, exit codes {codes}: {last_words(log)}")


def _killed(run: Path, kind: str, log: Path, draw: random.Random, seconds: float) -> int:
    """Start two ranks, kill one at a random moment; return whether it was in time."""
    pids = _start(run, kind, log, 2)
    victim = draw.randrange(2)
    first = wait(pids[victim], draw.random() * seconds)
    try:
        other = wait(pids[1 - victim], limit=90.0)
    except Ended:
        raise Ended(f"{kind}: rank {1 - victim} went on waiting for the other") from None
    if first == GONE and other not in (0, 1):
        raise Ended(f"{kind}: exit code {other} of the rank that was left: {last_words(log)}")
    return int(first == GONE)


def _restarted(run: Path, kind: str, draw: random.Random) -> int:
    """Let torchrun start two ranks, kill one of them once it trains; return whether it was in time."""
    recipe = run.with_suffix(".toml")
    recipe.write_text(recipe_of(kind).changed({"epochs": KINDS[kind].get("epochs", 4)}).to_toml())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2"]
    alone = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--monitor-interval", "0.2"]
    command = ["-m", "pyro_bnn", "train", str(recipe), "--out", str(run), "--no-report"]
    with run.with_suffix(".log").open("w") as log:
        agent = subprocess.Popen([*torchrun, *alone, *command], stdout=log, stderr=log)
        while agent.poll() is None and not (run / "recipe.toml").is_file():
            time.sleep(0.01)
        time.sleep(draw.random() * 1.5)
        ranks = _children(agent.pid)
        killed = bool(ranks) and agent.poll() is None
        if killed:
            os.kill(draw.choice(ranks), signal.SIGKILL)
        try:
            code = agent.wait(180)
        except subprocess.TimeoutExpired:
            for pid in (*_children(agent.pid), agent.pid):
                os.kill(pid, signal.SIGKILL)
            raise Ended(f"{kind}: torchrun was still running: {last_words(run.with_suffix('.log'))}") from None
    if code:
        raise Ended(f"{kind}: torchrun ended with {code}: {last_words(run.with_suffix('.log'))}")
    return int(killed)


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started and that run."""
    try:
        return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
