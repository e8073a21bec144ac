"""What has to be measured from outside: import times, the command's --help, first steps and peak memory."""

import subprocess
import sys
import time
from collections.abc import Sequence


def _seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def import_times(imports: dict[str, str], count: int) -> dict[str, list[float]]:
    """Return the wall-clock seconds of a fresh interpreter that imports one thing, in interleaved rounds."""
    commands = {title: [sys.executable, "-c", f"import {module}"] for title, module in imports.items()}
    commands["pyro-bnn --help"] = [sys.executable, "-m", "pyro_bnn", "--help"]
    seconds: dict[str, list[float]] = {title: [] for title in commands}
    for command in commands.values():  # compiles bytecode, fills the disk cache
        _seconds(command)
    for _ in range(count):
        for title, command in commands.items():
            seconds[title].append(_seconds(command))
    return seconds


_FIRST = """
import time, warnings; warnings.simplefilter("ignore")
import torch; torch.set_num_threads({threads})
from benchmarks.contenders import CONTENDERS
from benchmarks.work import works
contender = next(c for c in CONTENDERS if c.title == {title!r})
step = contender.training_step(works()[{name!r}])
start = time.perf_counter()
for _ in range(3): step()
print(time.perf_counter() - start)
"""


def printed(code: str) -> str:
    """Return the last line that a fresh interpreter prints which runs `code`."""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return done.stdout.splitlines()[-1]


def first_steps(title: str, name: str, threads: int) -> float:
    """Return the seconds of the first three steps of a fresh interpreter, with whatever it loads and records."""
    return float(printed(_FIRST.format(title=title, name=name, threads=threads)))


def peak_mb(code: str) -> float:
    """Return the peak resident memory, in MB, of a fresh interpreter that runs `code` (Linux)."""
    return float(printed(code + _PEAK)) / 1024


_PEAK = """
from pathlib import Path
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(status["VmHWM"].split()[0])  # resource's ru_maxrss would begin with the parent's
"""


_TRAIN = """
import warnings; warnings.simplefilter("ignore")
import torch; torch.set_num_threads({threads})
from benchmarks.contenders import CONTENDERS
from benchmarks.work import works
contender = next(c for c in CONTENDERS if c.title == {title!r})
step = contender.training_step(works()["lenet5"])
for _ in range(20): step()
"""

_PREDICT = """
import warnings; warnings.simplefilter("ignore")
import torch; torch.set_num_threads({threads})
from benchmarks.contenders import CONTENDERS
from benchmarks.work import images, works
contender = next(c for c in CONTENDERS if c.title == {title!r})
predict = contender.predictor(works()["lenet5"])
predict(images({rows}), {samples})
"""


def training_memory(title: str, threads: int) -> float:
    """Return the peak memory of training LeNet-5 for 20 steps."""
    return peak_mb(_TRAIN.format(title=title, threads=threads))


def prediction_memory(title: str, rows: int, samples: int, threads: int) -> float:
    """Return the peak memory of predicting."""
    return peak_mb(_PREDICT.format(title=title, rows=rows, samples=samples, threads=threads))
