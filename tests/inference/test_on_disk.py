"""Rows in files train as rows in memory do, to the same bits, and need not fit into memory."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn.data import mapped
from pyro_bnn.data.streams import Loaded, OnDisk
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit
from pyro_bnn.inference.fit_state import FitState
from pyro_bnn.inference.svi import Callback
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam
from tests.ranks import on_ranks

N = 53
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 3)).astype(np.float32), np.arange(N) % 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    return tmp_path


def trained(data: Any, **options: Any) -> Tensor:
    pyro.set_rng_seed(1)
    model = BNN(MLP(3, 2, [5]), priors.FanIn(), likelihoods.Categorical(), num_data=N)
    guide = AutoMeanFieldNormal(model)
    fit(
        model,
        guide,
        Adam({"lr": 1e-2}),
        data,
        **{"epochs": 3, "batch_size": 8, "seed": 0, "progress": False, **options},
    )
    return torch.cat([p.detach().reshape(-1) for p in guide.parameters()])


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"batch_size": N}, {"augment": torch.Tensor.sin}])
def test_the_same_bits_as_from_memory(folder: Path, options: Any) -> None:
    assert torch.equal(trained(mapped(folder), **options), trained((X, Y), **options))


def test_the_same_bits_with_missing_targets_and_weights(tmp_path: Path) -> None:
    y = np.where(RNG.random(N) < 0.3, np.nan, X.sum(1)).astype(np.float32)
    for name, array in (("x", X), ("y", y), ("weights", RNG.random(N).astype(np.float32))):
        np.save(tmp_path / f"{name}.npy", array)

    def regression(data: Any, **options: Any) -> Tensor:
        pyro.set_rng_seed(1)
        model = BNN(MLP(3, 1, [5]), priors.FanIn(), likelihoods.Gaussian(0.5), num_data=N)
        guide = AutoMeanFieldNormal(model)
        fit(model, guide, Adam({"lr": 1e-2}), data, epochs=2, batch_size=8, seed=0, progress=False, **options)
        return torch.cat([p.detach().reshape(-1) for p in guide.parameters()])

    rows = mapped(tmp_path)
    assert torch.equal(regression(rows), regression((X, y), weights=np.array(rows.weights)))


def test_the_standardiser_of_the_rows_travels_with_the_guide(folder: Path) -> None:
    pyro.set_rng_seed(1)
    model = BNN(MLP(3, 2, [5]), priors.FanIn(), likelihoods.Categorical(), num_data=N)
    guide = AutoMeanFieldNormal(model)
    rows = mapped(folder).standardised()
    result = fit(model, guide, Adam({"lr": 1e-2}), rows, epochs=1, progress=False)
    assert result.standardiser is rows.standardiser is not None


def test_what_is_resumed_goes_on_to_the_same_bits(folder: Path) -> None:
    class Half(Callback):
        kept: Any = None

        def epoch(self, state: FitState) -> None:
            if state.epoch == 1:
                self.kept, state.stop = state.state_dict(), "half"

    half = Half()
    trained(mapped(folder), callbacks=[half])
    assert torch.equal(trained(mapped(folder), resume=half.kept), trained((X, Y)))


def test_ranks_read_their_own_rows(folder: Path) -> None:
    one = trained((X, Y), noise="shared")
    for other in on_ranks(2, lambda: trained(mapped(folder), noise="shared").numpy()):
        assert np.allclose(one.numpy(), other, atol=1e-6)


def test_a_loader_of_libraries_alone_is_recorded_and_has_the_same_bits(caplog: pytest.LogCaptureFixture) -> None:
    """In the order of the rows a loader's batches are those of tensors that are not shuffled."""
    caplog.set_level("INFO", "pyro_bnn")
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    recorded = trained(DataLoader(data, 8), batch_size=None, epochs=40)
    assert any(record.message.startswith("recorded BNN") for record in caplog.records)
    caplog.clear()
    plain = trained(DataLoader(data, 8, collate_fn=lambda rows: tuple(map(torch.stack, zip(*rows, strict=True)))), batch_size=None, epochs=40)  # fmt: skip # noqa: E501
    assert not caplog.records
    assert torch.equal(recorded, plain)


def test_what_does_not_fit_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="batch_size=60 does not fit 53"):
        trained(mapped(folder), batch_size=60)
    with pytest.raises(ValueError, match="mapped rows say how many"):
        trained(mapped(folder), num_data=53)
    with pytest.raises(ValueError, match=r"standardised\(\)"):
        trained(mapped(folder), standardise=True)
    np.save(folder / "x.npy", np.where(np.arange(N)[:, None] == 40, np.inf, X))
    with pytest.raises(ValueError, match="a batch x"):
        trained(mapped(folder))


def test_an_error_of_the_reading_thread_is_raised(folder: Path) -> None:
    def late(x: Tensor) -> Tensor:
        seen.append(len(x))
        if len(seen) > 3:
            raise ValueError("the disk is gone")
        return x

    seen: list[int] = []
    with pytest.raises(ValueError, match="the disk is gone"):
        trained(mapped(folder).prepared(late))


def test_batches_come_in_the_order_of_rows_in_memory(folder: Path) -> None:
    stream = OnDisk(mapped(folder), 8, torch.float32, None)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(4))
    walked = list(stream.epoch(torch.Generator().manual_seed(4)))
    assert [len(batch[1]) for batch in walked] == [8] * 6 + [5]
    assert torch.equal(torch.cat([batch[0] for batch in walked]), torch.from_numpy(X)[order])


_LIMITED = """
import resource, sys
import numpy as np, torch
torch.set_num_threads(1)
from pyro_bnn.data import MappedRows, mapped
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit
from pyro_bnn.models import BNN, MLP, likelihoods, priors
from pyro_bnn.optim import Adam

def data_of_process():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData"))

def train(rows, **options):
    model = BNN(MLP(784, 10, [16]), priors.FanIn(), likelihoods.Categorical(), num_data=len(rows))
    return fit(model, AutoMeanFieldNormal(model), Adam({"lr": 1e-3}), rows, epochs=1, seed=0, **options)

rows = mapped(sys.argv[1])
train(MappedRows(rows.x[:200], rows.y[:200]), batch_size=100)  # imports what it needs
resource.setrlimit(resource.RLIMIT_DATA, 2 * (data_of_process() + 80 * 2**20,))
try:
    np.array(rows.x)
except MemoryError:
    print("does not fit")
result = train(rows, batch_size=2000)
print("trained on", rows.x.nbytes // 2**20, "MB:", result.history[0]["nll"] > 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on a process's own memory")
def test_more_rows_than_the_process_may_have_memory_for_are_trained_on(tmp_path: Path) -> None:
    """200 MB of rows in a process that may take 80 MB more than it has (RLIMIT_DATA: mapped files do not count)."""
    n = 67_000
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (n, 784))
    for start in range(0, n, 10_000):
        rows[start : start + 10_000, ::97] = 1.0
    del rows
    np.save(tmp_path / "y.npy", np.arange(n) % 10)
    done = subprocess.run([sys.executable, "-c", _LIMITED, tmp_path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["does not fit", "trained on 200 MB: True"]


# -- what runs beside the steps, and GPUs that are none ----------------------------------------------------------------


def test_the_next_batch_is_read_while_this_one_is_used(folder: Path) -> None:
    reads: list[int] = []

    def noted(x: Tensor) -> Tensor:
        reads.append(len(x))
        return x

    walk = OnDisk(mapped(folder).prepared(noted), 8, torch.float32, None).epoch(torch.Generator())
    next(walk)
    begun = time.monotonic()
    while len(reads) < 2:
        assert time.monotonic() - begun < 20, "nobody reads ahead"
        time.sleep(0.001)
    walk.close()  # type: ignore[attr-defined]


def test_batches_go_to_a_gpu_from_pinned_memory_without_waiting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU that is pretended: pinning and moving are noted, and the tensors stay where they are."""
    pinned: list[int] = []
    moved: list[tuple[str, bool, bool]] = []

    def pin(tensor: Tensor) -> Tensor:
        pinned.append(id(tensor))
        return tensor

    def to(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        if args and isinstance(args[0], (str, torch.device)):
            moved.append((str(args[0]), bool(options.get("non_blocking")), id(tensor) in pinned))
            return tensor
        return usual(tensor, *args, **options)

    usual = Tensor.to
    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", to)
    for device, expected in (("cuda:1", [("cuda:1", True, True)] * 2), ("meta", [("meta", False, False)] * 2)):
        pinned.clear()
        moved.clear()
        OnDisk(mapped(folder), 8, torch.float32, device).first()
        assert moved == expected
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    moved.clear()
    next(iter(Loaded(DataLoader(data, 8), None, None, None, "cuda").epoch(None)))
    assert moved == [("cuda", True, True)] * 2
