"""Files that are whole or not there, and parameters by names relative to model and guide."""

import math
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from programs import FEATURES, ROWS, batch_norm, classes, same_tensors, with_parameter
from torch import nn

from pyro_bnn.common.manifest import seal
from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference.checkpoint import (
    atomic_write,
    hold_interrupts,
    load_state,
    newest_state,
    parameters_of,
    restore_parameters,
    save_state,
    save_state_of_epoch,
    synchronise,
)
from pyro_bnn.models import BNN, likelihoods, priors

SAVED = Path(__file__).parent / "saved"


@pytest.fixture(autouse=True)
def heeded_interrupts() -> Iterator[None]:
    """Python's own handler of Ctrl-C: a job in a shell's background begins with interrupts ignored."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


@pytest.fixture(params=[False, True], ids=["global", "module_local"])
def store(request: pytest.FixtureRequest) -> Iterator[bool]:
    with pyro.settings.context(module_local_params=request.param):
        yield request.param


def pair(groups: Any = None) -> tuple[BNN, AutoMeanFieldNormal]:
    """A model with buffers and parameters of its own and its guide, both run once."""
    model = BNN(batch_norm(), priors.Normal(), likelihoods.Categorical(), ROWS)
    guide = AutoMeanFieldNormal(model, groups=groups)
    guide()
    model(*classes())
    return model, guide


def test_a_whole_file_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    for text in (b"one", b"two"):
        with atomic_write(path) as file:
            file.write(text)
        assert path.read_bytes() == text
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(error: BaseException) -> None:
        with atomic_write(path) as file:
            file.write(b"half of the new")
            raise error

    for error in (RuntimeError("full disk"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail(error)
        assert path.read_bytes() == b"old"
        assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_old_file_is_there_until_the_new_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"


def test_a_state_is_plain_data(tmp_path: Path) -> None:
    state = {"tensor": torch.randn(3), "nested": {"list": [1, 2.5, "text", None, True]}, "history": [{"nll": 0.1}]}
    save_state(tmp_path / "state", state)
    found = load_state(tmp_path / "state")
    assert torch.equal(found.pop("tensor"), state.pop("tensor"))  # type: ignore[arg-type]
    assert found == state


def test_a_state_that_is_not_plain_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="module of the state is a Linear: a state is tensors, numbers"):
        save_state(tmp_path / "state", {"module": nn.Linear(1, 1)})
    assert not list(tmp_path.iterdir())


def test_every_kind_of_value_comes_back(tmp_path: Path) -> None:
    tensor = torch.randn(4, 3)
    state = {
        "dtypes": [
            torch.ones(2, dtype=d) for d in (torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool)
        ],
        "views": [tensor.T, tensor[1:], tensor, torch.tensor(3.0), torch.zeros(0)],
        "keys": {0: "integer", None: "none", ("a", 1): "tuple", "$tensor": "like a mark of ours"},
        "tuple": (0.9, 0.999),
        "floats": [math.inf, -math.inf, -0.0, 0.1, 5e-324, 1e308],
        "large": 2**200,
        "empty": [{}, [], ()],
    }
    save_state(tmp_path / "state", state)
    found = load_state(tmp_path / "state")
    for key in ("dtypes", "views"):
        for a, b in zip(found.pop(key), state.pop(key), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
    assert found == state
    assert math.copysign(1, found["floats"][2]) == -1
    save_state(tmp_path / "state", {"nan": math.nan})
    assert math.isnan(load_state(tmp_path / "state")["nan"])


def test_two_states_are_kept_and_the_one_before_a_damaged_one_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in range(1, 12):
        save_state_of_epoch(tmp_path, epoch, {"epoch": epoch}, run="a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-10", "epoch-11"]
    assert newest_state(tmp_path, ["b", "a"]) == ({"epoch": 11}, "a")
    for name in ("epoch-11", "epoch-10"):
        file = tmp_path / name / "state.json"
        file.write_bytes(file.read_bytes().replace(b'"epoch": 1', b'"epoch": 2'))
        if name == "epoch-11":
            assert newest_state(tmp_path, ["a"]) == ({"epoch": 10}, "a")
            assert "epoch-11/state.json is damaged" in caplog.text
    with pytest.raises(ValueError, match=r"epoch-11/state.json is damaged.*epoch-10.*remove .* to begin anew"):
        newest_state(tmp_path, ["a"])


def test_a_state_half_written_is_none(tmp_path: Path) -> None:
    save_state_of_epoch(tmp_path, 1, {"epoch": 1})
    save_state_of_epoch(tmp_path, 2, {"epoch": 2})
    (tmp_path / "epoch-2" / "manifest.json").unlink()
    assert newest_state(tmp_path, [""]) == ({"epoch": 1}, "")
    save_state_of_epoch(tmp_path, 2, {"epoch": 2})
    assert newest_state(tmp_path, [""]) == ({"epoch": 2}, "")


def test_a_state_of_another_run_part_or_format_is_refused(tmp_path: Path) -> None:
    save_state(tmp_path / "state", {"x": torch.ones(1)}, run="a", part="member-1")
    with pytest.raises(ValueError, match="of another run"):
        load_state(tmp_path / "state", runs=["b"])
    with pytest.raises(ValueError, match="of another run"):
        load_state(tmp_path / "state", runs=["a"], part="member-2")
    tree = tmp_path / "state" / "state.json"
    tree.write_text(tree.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(ValueError, match="is damaged"):
        load_state(tmp_path / "state")
    seal(tmp_path / "state")
    with pytest.raises(ValueError, match="format 3; this version reads format 2"):
        load_state(tmp_path / "state")


def test_the_states_of_each_format() -> None:
    """One that format 2 wrote is read for ever; one of format 1, a pickle, is refused with the reason."""
    with pytest.raises(ValueError, match=r"last.pt is a state of an earlier version \(format 1\) and a pickle.*begin"):
        newest_state(SAVED / "format-1", ["a"])
    state, run = newest_state(SAVED / "format-2", ["a"])  # type: ignore[misc]
    assert run == "a"
    assert torch.equal(state["parameters"]["guide"]["loc_unconstrained"], torch.arange(3.0))
    assert state["optim"] == {"betas": (0.9, 0.999), "best": math.inf, "state": {0: None}}
    assert state["progress"] == {"epoch": 7, "history": [{"nll": 0.1}]}


class _Interrupts(dict[str, Any]):
    """A value during whose writing Ctrl-C is pressed."""

    def items(self) -> Any:
        signal.raise_signal(signal.SIGINT)
        return super().items()


def test_an_interrupt_waits_until_the_state_is_written(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with pytest.raises(KeyboardInterrupt):
        save_state(path, {"first": 1, "value": _Interrupts(), "last": torch.ones(1000)})
    assert load_state(path)["first"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_interrupts_are_held_to_the_end_of_the_outermost_block() -> None:
    def nested() -> None:
        with hold_interrupts():
            with hold_interrupts():
                signal.raise_signal(signal.SIGINT)
            done.append("after the inner block")
        done.append("after the outer block")

    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        nested()
    assert done == ["after the inner block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_is_not_hidden_by_a_held_interrupt() -> None:
    def fail() -> None:
        with hold_interrupts():
            signal.raise_signal(signal.SIGINT)
            raise OSError("full disk")

    with pytest.raises(OSError, match="full disk"):
        fail()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_and_other_handlers_are_left_alone() -> None:
    def inside() -> None:
        with hold_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    found: list[Any] = []
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        inside()
    finally:
        signal.signal(signal.SIGINT, usual)
    assert found == [signal.default_int_handler, signal.SIG_IGN]


@pytest.mark.parametrize("groups", [None, "site"])
def test_parameters_go_to_another_pair_in_the_same_process(groups: Any, store: bool) -> None:
    first, second = pair(groups), pair(groups)
    kept = parameters_of(*first)
    assert not same_tensors(kept, parameters_of(*second))
    restore_parameters(*second, kept)
    assert same_tensors(kept, parameters_of(*second))
    assert same_tensors(kept, parameters_of(*first))
    site = next(iter(second[1].site_names()))
    assert torch.equal(first[1].site(site).loc, second[1].site(site).loc)


def test_names_carry_no_serial(store: bool) -> None:
    names = {part: list(tensors) for part, tensors in parameters_of(*pair()).items()}
    assert names["guide"] == ["loc_unconstrained", "rho_unconstrained"]
    assert "deterministic.1.weight_unconstrained" in names["model"]
    assert "net.1.running_mean" in names["model"]
    assert names["store"] == []


def test_what_is_kept_is_a_copy() -> None:
    model, guide = pair()
    kept = parameters_of(model, guide)
    with torch.no_grad():
        guide.get_parameter("loc_unconstrained").fill_(9.0)
    assert not bool((kept["guide"]["loc_unconstrained"] == 9).any())


def test_set_state_of_the_store_is_taken_up() -> None:
    model, guide = pair()
    state = pyro.get_param_store().get_state()
    state["params"] = {name: value.detach() + 1 for name, value in state["params"].items()}
    before = guide.get_parameter("loc_unconstrained").detach().clone()
    pyro.get_param_store().set_state(state)
    synchronise(guide)
    torch.testing.assert_close(guide.get_parameter("loc_unconstrained").detach(), before + 1)
    kept = parameters_of(model, guide)
    torch.testing.assert_close(kept["guide"]["loc_unconstrained"], before + 1)
    torch.testing.assert_close(kept["model"]["deterministic.1.weight_unconstrained"], torch.full((5,), 2.0))


def test_restoring_after_set_state_reaches_the_store() -> None:
    model, guide = pair()
    kept = parameters_of(model, guide)
    state = pyro.get_param_store().get_state()
    state["params"] = {name: value.detach() + 1 for name, value in state["params"].items()}
    pyro.get_param_store().set_state(state)
    restore_parameters(model, guide, kept)
    with torch.no_grad():
        stored = pyro.get_param_store()[f"{guide._pyro_name}.loc"]
    assert torch.equal(stored, kept["guide"]["loc_unconstrained"])


def test_loose_parameters_by_name() -> None:
    x = torch.randn(ROWS, FEATURES)
    guide = AutoMeanFieldNormal(with_parameter)
    guide(x)
    with_parameter(x, x[:, 0])
    kept = parameters_of(with_parameter, guide, ["noise", "another program's"])
    assert list(kept["store"]) == ["noise"]
    with torch.no_grad():
        pyro.get_param_store()._params["noise"].fill_(5.0)
    restore_parameters(with_parameter, guide, kept)
    assert float(pyro.param("noise").detach()) == pytest.approx(0.5)
