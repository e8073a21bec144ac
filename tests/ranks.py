"""Functions run in several processes of a gloo group, on this machine and without a network."""

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

__all__ = ["on_ranks"]


def on_ranks(count: int, work: Callable[..., Any], *args: Any, seconds: float = 120.0) -> list[Any]:
    """Call `work(*args)` in so many forked processes of one group; return what each returned, or raise what one did."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes, children = [], []
        for rank in range(count):
            here, there = context.Pipe(duplex=False)
            child = context.Process(target=_run, args=(rank, count, Path(folder) / "store", there, work, args))
            child.start()
            there.close()
            pipes.append(here)
            children.append(child)
        said = []
        for pipe, child in zip(pipes, children, strict=True):
            said.append(pipe.recv() if pipe.poll(seconds) else (False, f"no answer in {seconds} s"))
            child.join(10)
            if child.is_alive():
                child.kill()
    for rank, (fine, value) in enumerate(said):
        if not fine:
            raise AssertionError(f"rank {rank}: {value}")
    return [value for _, value in said]


def _run(rank: int, count: int, store: Path, pipe: Any, work: Callable[..., Any], args: Any) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=timedelta(seconds=60)
        )
        pipe.send((True, work(*args)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
