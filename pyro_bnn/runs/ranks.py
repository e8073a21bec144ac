"""
A training that torchrun started: K processes of one command, of which rank 0 writes and speaks.

`torchrun --nproc-per-node K -m pyro_bnn train RECIPE` runs the command K times, and tells each by its environment which
one it is. `process_group` joins them: by gloo for tensors of a CPU, and by nccl for those of a GPU, of which every rank
takes the one of its number on its machine. With --max-restarts a failure starts all ranks again, and they go on from
the last checkpoint in the folder of --out.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

__all__ = [
    "check_restarts",
    "is_first",
    "launched",
    "leave",
    "process_group",
    "quiet_unless_first",
    "record",
    "restarted",
]

TIMEOUT = 600.0
"""Seconds that ranks wait for one another."""


def launched() -> bool:
    """Whether this process is one of several that torchrun, or another launcher with its variables, started."""
    named = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return named and int(os.environ["WORLD_SIZE"]) > 1


def is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return not launched() or os.environ["RANK"] == "0"


def restarted() -> bool:
    """Whether torchrun started the ranks again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def check_restarts(out: Path | None) -> None:
    """Refuse restarts that would not know what they go on with."""
    if out is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise ValueError("torchrun --max-restarts goes on with the run in a folder: add --out DIR")


@contextmanager
def process_group(device: str, timeout: float = TIMEOUT) -> Iterator[None]:
    """
    Join the other ranks, if there are any.

    :param device: where rows and programs will be; "cuda" is the GPU of this rank's number on its machine.
    :param timeout: seconds that ranks wait for one another.
    """
    if not launched():
        yield
        return
    if not 0 < timeout < 10**7:
        raise ValueError(f"timeout={timeout!r} is not a number of seconds that ranks wait: pass one above 0")
    import torch
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    backend = "gloo"
    if device.partition(":")[0] == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device={device!r} on several ranks, and torch finds no GPU here: pass --device cpu")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    wait = timedelta(seconds=timeout)
    store, rank, count = next(rendezvous("env://", timeout=wait))
    # torchrun's store outlives a restart, and what the dead ranks left in it leads nowhere
    own = PrefixStore(f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-of-{count}", store)
    distributed.init_process_group(backend, store=own, rank=rank, world_size=count, timeout=wait)
    fine = False
    try:
        yield
        fine = True
    finally:
        if fine or backend == "gloo":  # what a GPU still waits for would be waited for here
            distributed.destroy_process_group()


def quiet_unless_first() -> None:
    """Let ranks other than the first say nothing but what went wrong."""
    if not is_first():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (until the end of the process)
        logging.getLogger("pyro_bnn").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")


def leave(code: int) -> int:
    """Return an exit code, or end a rank with it at once: threads of its group may outlive Python's own end."""
    if launched():
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    return code


def record(error: BaseException) -> None:
    """Let torchrun show an error as what ended its job."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)
