"""What a fit on several ranks does beside its steps: checks, a common start, what they tell each other."""

from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

import pyro
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from pyro_bnn.data.streams import Stream
from pyro_bnn.inference.distributed import (
    DataParallel,
    Ranks,
    batch_norm_layers,
    fingerprint,
    rank_seed,
    synced_norm,
)
from pyro_bnn.inference.fit_state import FitState, optim_state, relative
from pyro_bnn.inference.minibatch import MinibatchStep
from pyro_bnn.inference.parts import Noise, PartedStep

__all__ = ["begin_together", "check_accumulate", "check_shards", "check_undivided", "end_epoch_together", "parted_step"]


def check_accumulate(accumulate: Any, noise: Any) -> None:
    """Refuse what is no number of batches, and noise that is neither own nor shared."""
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(f"accumulate={accumulate!r} is not a number of batches: pass an integer of at least 1")
    if noise not in get_args(Noise):
        raise ValueError(f"noise={noise!r} is unknown: pass 'own' or 'shared'")


def check_undivided(data: Any) -> None:
    """Refuse a loader that gives every rank rows of its own: fit does so."""
    if isinstance(data, DataLoader) and isinstance(data.sampler, DistributedSampler):
        raise ValueError(
            "the DataLoader has a DistributedSampler, and fit gives every rank its rows of each batch itself: leave "
            "the sampler out, or pass the data set, of which every rank then reads its own rows alone"
        )


def check_shards(stream: Stream, ranks: Ranks, parallel: DataParallel, noise: Noise, model: Any, guide: Any) -> None:
    """Refuse batches that cannot be divided among the ranks."""
    k, last = ranks.count, stream.last
    if stream.batch_size < k:
        raise ValueError(
            f"batches of {stream.batch_size} rows cannot be divided among {k} ranks: pass a batch_size of at least {k}"
        )
    layers = batch_norm_layers(model, guide)
    if layers and parallel.batch_norm == "refuse":
        raise ValueError(
            f"{layers[0]} takes its statistics from a batch, and batch_norm='refuse': pass 'sync' (those of the whole "
            "batch) or 'local' (of each rank's rows), or use another normalisation"
        )
    synced = bool(layers) and parallel.batch_norm == "sync"
    if last < k and (synced or noise == "shared"):
        why = "synchronised batch normalisation" if synced else "noise='shared'"
        raise ValueError(
            f"the last batch has {last} rows, and {why} needs rows on each of {k} ranks: choose another batch_size"
        )
    if layers and not synced and 1 in (stream.batch_size // k, last // k if last >= k else 1):
        raise ValueError(
            f"batches of {stream.batch_size} and {last} rows leave a rank of {k} a single row, of which {layers[0]} "
            "takes no statistics: choose another batch_size, or batch_norm='sync'"
        )


def begin_together(
    state: FitState, ranks: Ranks, seed: int | None, resumed: Mapping[str, Any] | None, noise: Noise
) -> None:
    """Give every rank the same start, and noise of its own."""
    state.rank = ranks.rank
    names = {name: list(p.shape) for name, p in relative(state.parameters, state.model, state.guide).items()}
    order = None if state.order is None else fingerprint(state.order.get_state())
    ranks.check_same(
        {
            "the optimizer": type(state.optim).__name__,
            "epochs": state.epochs,
            "batch_size": state.batch_size,
            "accumulate": state.accumulate,
            "the number of rows": state.num_data,
            "the parameters": names,
            "the epoch to begin at": state.epoch,
            "the order of the rows": order,
        },
        "the ranks cannot train together",
    )
    ranks.share(state.model, state.guide)
    ranks.share_tensors([state.parameters[name].detach() for name in sorted(state.store_names)])
    others = [] if resumed is None else resumed.get("ranks", [])
    if noise == "shared":
        state.load_rank(ranks.told(state.of_this_rank()))
    elif ranks.rank and len(others) == ranks.count - 1:
        state.load_rank(others[ranks.rank - 1])
    elif ranks.rank:
        begun = fingerprint(resumed["rng"]) if resumed is not None else (0 if seed is None else seed)
        state.job.run(pyro.set_rng_seed, rank_seed(begun, ranks.rank, state.step))
    _check_in_step(state, ranks, noise)


def end_epoch_together(state: FitState, ranks: Ranks, noise: Noise) -> None:
    """See that the ranks hold the same, and let rank 0 know what the others have of their own."""
    state.other_ranks = ranks.gather(state.of_this_rank())[1:]
    _check_in_step(state, ranks, noise)


def _check_in_step(state: FitState, ranks: Ranks, noise: Noise) -> None:
    parts: dict[str, Any] = {
        "a parameter": [state.parameters[name] for name in sorted(state.parameters)],
        "the optimizer's state": optim_state(state.optim, state.parameters),
    }
    if noise == "shared":
        parts["the random state (what is drawn row by row, as by dropout, cannot be shared)"] = state.of_this_rank()[
            "rng"
        ]
    ranks.check_in_step(parts)


def parted_step(
    step: MinibatchStep, state: FitState, ranks: Ranks | None, parallel: DataParallel, noise: Noise
) -> PartedStep:
    """Return the step of a batch that comes in parts."""
    parameters = [state.parameters[name] for name in sorted(state.parameters)]
    if ranks is not None and parallel.batch_norm == "sync" and batch_norm_layers(state.model, state.guide):
        step.undisturbed = False  # what the ranks tell each other within a step cannot be recorded
        return PartedStep(step, parameters, ranks, noise, partial(synced_norm, ranks))
    return PartedStep(step, parameters, ranks, noise)
