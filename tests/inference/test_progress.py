"""The progress bar: whole at any width, silent without a terminal, one only."""

import io

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_bnn.guides import AutoMeanFieldNormal
from pyro_bnn.inference import fit
from pyro_bnn.inference.progress import ProgressBar, ProgressLine, bar_text
from pyro_bnn.optim import Adam
from pyro_bnn.runs.progress import ProgressReport

FIGURES = ["nll 0.1234", "kl 1.201", "val nll 0.2345", "val acc 98.76 %"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", [30, 40, 60, 79, 100, 120, 200])
def test_the_line_fits_and_has_count_bar_and_time_from_40_columns_on(width):
    line = bar_text("epoch", 3.4, 10, FIGURES, 12.0, width)
    assert len(line) <= width
    if width >= 40:
        assert line.startswith("epoch  3/10 ")
        assert line.endswith("0:12, 0:23 left")
        assert "━" in line
        assert "─" in line
    if width >= 79:
        assert "nll 0.1234  kl 1.201" in line
    if width >= 100:
        assert "val acc 98.76 %" in line


def test_times_of_a_resumed_fit_count_from_where_it_went_on():
    assert bar_text("epoch", 6, 10, [], 10.0, 80, first=5).endswith("0:10, 0:40 left")
    assert bar_text("epoch", 5, 10, [], 0.0, 80, first=5).endswith(" 0:00")
    assert bar_text("epoch", 10, 10, [], 65.0, 80).endswith(" 1:05")


def model(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 8, subsample=torch.arange(len(x))):
        pyro.sample("obs", dist.Normal(w * x[:, 0], 1.0), obs=y)


def run(**options):
    x = torch.linspace(-1, 1, 8)[:, None]
    return fit(model, AutoMeanFieldNormal(model), Adam({"lr": 1e-2}), (x, x[:, 0]), epochs=3, **options)


def test_fit_shows_a_bar_where_stderr_is_a_terminal_and_is_asked_not_to(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    run()
    assert terminal.getvalue().splitlines()[-1].split("\r")[-1].startswith("epoch 3/3 ━")
    shown = len(terminal.getvalue())
    run(progress=False)
    assert len(terminal.getvalue()) == shown
    own = Terminal()
    run(callbacks=[ProgressBar(own)])  # one of the caller's own stands for it
    assert len(terminal.getvalue()) == shown
    assert "epoch 3/3" in own.getvalue()
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    run()
    assert pipe.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_a_run_says_a_line_for_each_of_few_epochs_and_not_for_each_of_many():
    pipe = io.StringIO()
    run(callbacks=[ProgressReport(pipe)])
    lines = pipe.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert lines[0].split("left ")[1]


def test_transitions_of_a_chain_move_a_bar():
    terminal = Terminal()
    bar = ProgressLine("chain 1 of 4, draw", 20, terminal)
    for _ in range(20):
        bar.advance()
    bar.end()
    assert terminal.getvalue().split("\r")[-1].startswith("chain 1 of 4, draw 20/20 ━")
