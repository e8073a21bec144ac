"""
What many ranks take per step in memory and communication, and the efficiency to expect of them. Writes docs/scale.md.

    python -m benchmarks.scale                 from the step times in benchmarks/scale.json
    python -m benchmarks.scale --measure       measures them on this machine first (one thread, some minutes)
    python -m benchmarks.scale --print --gbits 10 200 --latency 5e-6 --ranks 2 8 --speed 1 500

With R random parameters (each a mean and a deviation), O others (of normalisation layers), float32 and Adam:

    kept between steps     parameters 4 (2R + O), gradients 4 (2R + O), Adam's moments 8 (2R + O)
    while a step runs      at least sigma, the noise, the drawn weights and their gradient, 4 R each; activations
    all-reduced            4 (2R + O): one flat vector of gradients
    ring all-reduce        t(n) = 2 (n - 1) / n * bytes / bandwidth + 2 (n - 1) * latency        (n ranks)
    efficiency             T / (T + t(n)), T the step of one rank with its own batch

A network without uncertainty has R + O for 2R + O, and of a step's own only the activations. The ring is the
bandwidth-optimal all-reduce of Patarasuk and Yuan 2009: each rank sends every part once to be summed and once to be
known, 2 (n - 1) messages of 1/n of the vector. It is taken to begin when the gradients are complete, without overlap.
Activations are what autograd saves for the backward pass of the network on the meta device, each storage once; they
grow with the batch and do not know about uncertainty.
"""

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_bnn.common.files import insert_between, write_text
from pyro_bnn.common.limits import in_words
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.models.networks.densenet121 import DenseNet121
from pyro_bnn.models.networks.lenet5 import LeNet5
from pyro_bnn.models.networks.patch_transformer import PatchTransformer
from pyro_bnn.models.networks.resnet20 import ResNet20
from pyro_bnn.models.networks.resnet34 import ResNet34
from pyro_bnn.models.networks.wide_resnet import WideResNet

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "scale.json"
PAGE = ROOT / "docs" / "scale.md"
FLOAT = 4
RANKS, GBITS, LATENCY, SPEED = (2, 4, 8, 16, 32, 64), (10.0, 25.0, 100.0), 50e-6, (1.0, 100.0)


@dataclass(frozen=True)
class Case:
    """A network, the shape of an image, and the batch of a rank."""

    title: str
    net: Callable[[], nn.Module]
    image: tuple[int, ...]
    batch: int


def _transformer() -> nn.Module:
    return PatchTransformer(image_size=224, patch_size=16, width=768, depth=14, heads=12, hidden=3072)


CASES: dict[str, Case] = {
    "lenet5": Case("LeNet-5", lambda: LeNet5(in_channels=1), (1, 28, 28), 100),
    "resnet20": Case("ResNet-20", ResNet20, (3, 32, 32), 128),
    "resnet34": Case("ResNet-34", ResNet34, (3, 32, 32), 16),
    "densenet121": Case("DenseNet-121", DenseNet121, (3, 32, 32), 16),
    "wide_resnet": Case("WRN-28-10", WideResNet, (3, 32, 32), 4),
    "transformer": Case("transformer, 14 blocks of 768", _transformer, (3, 224, 224), 2),
}


# -- the arithmetic ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """Random parameters, others, and the bytes of activations of a batch."""

    random: int
    others: int
    activations: int


def counted(case: Case) -> Counts:
    """Return what there is to count, on the meta device: nothing takes memory."""
    with torch.device("meta"):
        net, x = case.net(), torch.empty(case.batch, *case.image)
    with pyro.validation_enabled(False):  # which would look at values
        model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), num_data=1)
    sizes = {name: parameter.numel() for name, parameter in net.named_parameters()}
    random = sum(sizes[name] for name in model.random_names)
    return Counts(random, sum(sizes.values()) - random, activation_bytes(net, x))


def activation_bytes(net: nn.Module, x: Tensor) -> int:
    """Return the bytes that autograd saves for the backward pass, but for parameters; each storage once."""
    own = {parameter.untyped_storage()._cdata for parameter in net.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in own:
            kept[place] = tensor  # held, so that its place is not another's
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net.train()(x)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def memory(counts: Counts, uncertain: bool) -> dict[str, int]:
    """Return bytes by what they are for."""
    size = FLOAT * ((2 if uncertain else 1) * counts.random + counts.others)
    own = 4 * FLOAT * counts.random if uncertain else 0
    return {"parameters": size, "gradients": size, "moments": 2 * size, "step": own, "activations": counts.activations}


def all_reduced(counts: Counts, uncertain: bool) -> int:
    """Return the bytes of the flat vector of gradients."""
    return memory(counts, uncertain)["gradients"]


def ring_seconds(size: int, ranks: int, gbits: float, latency: float) -> float:
    """Return the time of a ring all-reduce of so many bytes."""
    return 2 * (ranks - 1) / ranks * 8 * size / (gbits * 1e9) + 2 * (ranks - 1) * latency


def efficiency(step: float, size: int, ranks: int, gbits: float, latency: float) -> float:
    """Return the share of the time in which the ranks compute."""
    return step / (step + ring_seconds(size, ranks, gbits, latency))


# -- measuring -----------------------------------------------------------------------------------------------------


def measure_here(name: str, steps: int) -> dict[str, float]:
    """Return the seconds of the fastest of some mean-field steps of Adam, and by how much memory rose at most."""
    from pyro.infer import SVI

    from pyro_bnn.common.memory import keep_freed_memory
    from pyro_bnn.guides import AutoMeanFieldNormal
    from pyro_bnn.inference import FlatMeanField_ELBO, per_datum
    from pyro_bnn.optim import Adam

    torch.set_num_threads(1)
    keep_freed_memory()
    case = CASES[name]
    pyro.set_rng_seed(0)
    x, y = torch.randn(case.batch, *case.image), torch.randint(10, (case.batch,))
    before = _memory("VmRSS")
    model = BNN(case.net(), priors.Kaiming(), likelihoods.Categorical(), num_data=50_000)
    guide = AutoMeanFieldNormal(model)
    svi = SVI(model, guide, Adam({"lr": 1e-4}), FlatMeanField_ELBO())
    times = []
    with per_datum(50_000):
        for _ in range(steps + 1):  # the first sets up
            start = time.process_time()  # of one thread: what others do on the machine counts less than by the clock
            svi.step(x, y)
            times.append(time.process_time() - start)
    return {"seconds": min(times[1:]), "bytes": float(_memory("VmHWM") - before)}


def _memory(which: str) -> int:
    """Return the bytes of this process, now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(which))


def measure(steps: Mapping[str, int]) -> dict[str, Any]:
    """Measure every network in a process of its own."""
    from pyro_bnn.common.machine import cpu_name

    found = {}
    for name, count in steps.items():
        command = [sys.executable, "-m", "benchmarks.scale", "--one", name, "--steps", str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        found[name] = {**json.loads(done.stdout.splitlines()[-1]), "batch": CASES[name].batch}
        print(name, found[name], flush=True)
    made = {"machine": cpu_name(), "torch": torch.__version__, "date": datetime.date.today().isoformat()}
    return {**made, "steps": found}


# -- the page ------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(
    counts: Mapping[str, Counts],
    measured: Mapping[str, Any],
    *,
    ranks: Sequence[int] = RANKS,
    gbits: Sequence[float] = GBITS,
    latency: float = LATENCY,
    speed: Sequence[float] = SPEED,
) -> str:
    """Return the tables of the page."""
    held, sent, times = [], [], {name: step["seconds"] for name, step in measured["steps"].items()}
    for name, count in counts.items():
        case, point, cloud = CASES[name], memory(count, False), memory(count, True)
        kept = [sum(m[key] for key in ("parameters", "gradients", "moments")) for m in (point, cloud)]
        held.append(
            [
                f"{case.title}, batch {case.batch}",
                f"{count.random:,}",
                f"{count.others:,}",
                *(in_words(size) for size in (*kept, cloud["step"], count.activations)),
                f"{sum(cloud.values()) / sum(point.values()):.2f}",
                f"{in_words(sum(cloud.values()))} / {in_words(round(measured['steps'][name]['bytes']))}",
            ]
        )
        cost = [ring_seconds(all_reduced(count, True), ranks[-1], one, latency) for one in gbits]
        size = [in_words(all_reduced(count, uncertain)) for uncertain in (False, True)]
        sent.append([case.title, *size, *(_duration(t) for t in cost), _duration(times[name])])
    more = [
        (measured["steps"][name]["bytes"] - sum(memory(count, True).values())) / count.random
        for name, count in counts.items()
        if count.random > 10**7
    ]
    head = "network|R|O|kept, point|kept, mean field|of a step|activations|mean field / point|all, counted / measured"
    parts = [
        "### Memory of a rank",
        _table(head.split("|"), held),
        f"The last column: all of it for the mean field, and by how much the memory of a process rose while it trained "
        f"a few steps (torch {measured['torch']}, {measured['machine']}, {measured['date']}). What is counted is what "
        f"cannot be less. Above 10^7 parameters {min(more):.0f} to {max(more):.0f} bytes per random parameter were "
        "measured on top: 4 of them are the network that the model holds, the rest, not taken apart, is what an "
        "operation needs for a moment, buffers of libraries, and freed memory that is kept.",
        "### Communication of a step",
        _table(
            ["network", "bytes, point", "bytes, mean field"]
            + [f"ring of {ranks[-1]}, {one:g} Gbit/s" for one in gbits]
            + ["a step here"],
            sent,
        ),
        f"A latency of {_duration(latency)} per message. The step is one of mean-field SVI with Adam and the batch "
        "above, on one thread of this machine: processor time, the least of a few.",
    ]
    for factor in speed:
        on = "this machine, one thread a rank" if factor == 1 else f"a device {factor:g} times as fast (a supposition)"
        parts.append(f"### Efficiency to expect on {on}")
        rows = [
            [f"{CASES[name].title}, {one:g} Gbit/s"]
            + [_percent(efficiency(times[name] / factor, all_reduced(count, True), n, one, latency)) for n in ranks]
            for name, count in counts.items()
            for one in gbits
        ]
        parts.append(_table(["network, bandwidth", *(f"{n} ranks" for n in ranks)], rows))
    return "\n\n".join(parts)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--measure", action="store_true", help="measure the steps on this machine")
    parser.add_argument("--print", action="store_true", dest="shown", help="print the tables and write nothing")
    parser.add_argument("--gbits", type=float, nargs="+", default=GBITS, help="bandwidths in Gbit/s")
    parser.add_argument("--latency", type=float, default=LATENCY, help="seconds per message")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--speed", type=float, nargs="+", default=SPEED, help="how many times as fast a device is")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure_here(given.one, given.steps)))
        return
    if given.measure:
        steps = {name: 50 if name == "lenet5" else 3 for name in CASES}
        write_text(MEASURED, json.dumps(measure(steps), indent=1) + "\n")
    counts = {name: counted(case) for name, case in CASES.items()}
    network = {"ranks": given.ranks, "gbits": given.gbits, "latency": given.latency, "speed": given.speed}
    text = markdown(counts, json.loads(MEASURED.read_text()), **network)
    if given.shown:
        print(text)
        print({name: asdict(count) for name, count in counts.items()})
        return
    write_text(PAGE, insert_between(PAGE.read_text(), "scale", text))


if __name__ == "__main__":
    main()
