"""Every kind of posterior from a recipe: one interface, saved, loaded, resumed to the same bits."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.analysis.arviz import groups_of, open_arviz
from pyro_bnn.assemble import catalogue
from pyro_bnn.guides import AutoLowRankNormal, AutoPoint, Ensemble, StoredDraws
from pyro_bnn.inference.svi import Callback, Diverged, FitState
from pyro_bnn.methods import make_method
from pyro_bnn.recipe import Recipe
from pyro_bnn.registry import look_up, names
from pyro_bnn.runs.loading import load
from pyro_bnn.runs.train import train

SMALL: dict[str, Any] = {
    "model": "mlp",
    "model_args.hidden": [8],
    "epochs": 4,
    "data_args": {"train_size": 200, "test_size": 60},
    "num_samples": 6,
    "estimator": "total",
}
KINDS: dict[str, Any] = {
    "svi": "svi",
    "map": "map",
    "ml": "ml",
    "mc_dropout": {"name": "mc_dropout", "rate": 0.2},
    "hwa": {"name": "hwa", "start": 1, "cycle": 0.5},
    "low_rank": {"name": "low_rank", "start": 1, "cycle": 0.5, "rank": 4},
    "swa": {"name": "swa", "cycle": 0.5},
    "swa_of_map": {"name": "swa", "of": "map", "cycle": 0.5},
    "ema": {"name": "ema", "decay": 0.9},
    "ensemble": {"name": "ensemble", "members": 2},
    "ensemble_of_hwa": {"name": "ensemble", "of": {"name": "hwa", "cycle": 1}, "members": 2},
    "snapshots": {"name": "snapshots", "members": 2},
    "snapshots_of_hwa": {"name": "snapshots", "of": {"name": "hwa", "cycle": 1}, "members": 2},
    "sgld": {"name": "sgld", "lr": 0.05, "draws": 5},
    "psgld": {"name": "sgld", "lr": 1e-4, "draws": 5, "precondition": 0.95},
    "cyclic_sgld": {"name": "cyclic_sgld", "lr": 0.05, "draws": 4, "cycles": 2},
    "lmc": {"name": "lmc", "lr": 0.05, "draws": 2},
}
X = torch.rand(7, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def run_small(kind: Any, out: Path | None, **settings: Any) -> Any:
    return train("lenet5-mnist-mini", out=out, progress=False, **{**SMALL, "method": kind, "report": False, **settings})


def test_the_table_here_is_complete() -> None:
    covered = {make_method(kind).__class__ for kind in KINDS.values()}
    all_of_them = {look_up("methods", name) for name in names("methods")}
    assert covered | {look_up("methods", name) for name in ("nuts", "hmc", "laplace")} == all_of_them
    assert catalogue()["methods"] == names("methods")


class _Stop(Callback):
    """Interrupt after so many epochs, over all fits."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def epoch(self, state: FitState) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", sorted(KINDS))
def test_one_interface_saved_loaded_and_resumed(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    whole = run_small(kind, tmp_path / "whole", report=True)
    assert "<html" in (tmp_path / "whole" / "report.html").read_text()
    idata = open_arviz(tmp_path / "whole" / "posterior.nc")
    groups = set(groups_of(idata))
    assert {"posterior_predictive", "predictions", "prior"} <= groups
    assert len(groups & {"log_likelihood", "log_density"}) == 1
    idata.close()
    loaded = load(tmp_path / "whole")
    for posterior in (whole.posterior, loaded):
        p = posterior.predict(X, num_samples=6, seed=1)
        torch.testing.assert_close(p.sum(-1), torch.ones(7))
        torch.testing.assert_close(p, whole.posterior.predict(X, num_samples=6, seed=1), rtol=0, atol=0)
        assert posterior.draws(X, num_samples=3, seed=1).shape == (3, 7, 10)
        u = posterior.uncertainty(X, num_samples=6, seed=1)
        torch.testing.assert_close(u.total, u.aleatoric + u.epistemic)
        assert bool((u.epistemic > -1e-12).all())
    results = json.loads((tmp_path / "whole" / "results.json").read_text())
    assert results["method"]["name"] == make_name(kind)
    assert results["seconds"]["train"] > 0
    # cut in the middle and gone on with, in what could be another process
    epochs = len(whole.history)
    pyro.clear_param_store()
    cut = run_small(kind, tmp_path / "cut", callbacks=[_Stop(epochs // 2 + 1)])
    assert not cut.finished
    assert not (tmp_path / "cut" / "results.json").exists()
    pyro.clear_param_store()
    torch.manual_seed(99)
    resumed = run_small(kind, tmp_path / "cut")
    assert resumed.finished
    assert resumed.results["test"] == whole.results["test"]
    assert [{**line, "seconds": 0} for line in resumed.history] == [{**line, "seconds": 0} for line in whole.history]


def make_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["name"])


def test_what_is_left_implicit_is_spelled_out(tmp_path: Path) -> None:
    run_small({"name": "ensemble", "of": "hwa", "members": 1}, tmp_path / "run")
    held = Recipe.from_toml((tmp_path / "run" / "recipe.toml").read_text()).method
    assert held["of"] == {
        "name": "hwa",
        "start": 2.0,
        "cycle": 1.0,
        "low": 0.1,
        "schedule": "sawtooth",
        "variance": "total",
    }
    run = run_small("sgld", None)
    assert run.recipe.method == {
        "name": "sgld",
        "lr": run.recipe.optim.loc["lr"],
        "draws": 50,
        "burn_in": 2.0,
        "precondition": 0.0,
    }


def test_the_learning_rate_follows_the_cycles() -> None:
    run = run_small({"name": "hwa", "start": 2, "cycle": 1, "low": 0.2}, None)
    rates = [line["learning_rates"]["loc"] for line in run.history]
    top = run.recipe.optim.loc["lr"]
    assert rates[0] == pytest.approx(top)
    # after an epoch's last step the factor is that of the next one, the first of a cycle of two steps
    steps = 2
    assert rates[2] == pytest.approx(top * (1 - (1 - 0.2) / steps))


def test_members_differ_and_the_ensemble_is_their_mean() -> None:
    run = run_small({"name": "ensemble", "members": 3}, None)
    guide = run.posterior.guide
    assert isinstance(guide, Ensemble)
    draws = run.posterior.draws(X, num_samples=3, seed=0)
    assert not torch.allclose(draws[0], draws[1], atol=1e-3)
    torch.testing.assert_close(run.posterior.predict(X, num_samples=3, seed=4), draws.mean(0))
    assert [line["part"] for line in run.history] == ["member-1"] * 4 + ["member-2"] * 4 + ["member-3"] * 4
    alone = run_small("map", None)  # member 1 is what its kind leaves with the same seed
    assert isinstance(alone.posterior.guide, AutoPoint)
    assert torch.equal(alone.posterior.guide.loc, guide.members[0].loc)


@pytest.mark.parametrize("kind", ["svi", "map", "ml", "mc_dropout"])
def test_points_are_recorded_like_means_and_deviations(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="pyro_bnn"):
        run_small(KINDS[kind], None, estimator="analytic", epochs=1)
    assert any(line.startswith("recorded BNN") for line in caplog.messages)


@pytest.mark.parametrize(("kind", "rate", "epochs"), [("svi", 0.3, 3), ("map", 0.1, 3), ("ml", 0.03, 8)])
def test_the_best_epoch_is_kept_or_the_last(kind: str, rate: float, epochs: int, tmp_path: Path) -> None:
    """At these rates the last epoch is not the best; an average of its snapshot alone is the last."""

    class Ends(Callback):
        def __init__(self) -> None:
            self.locs: list[torch.Tensor] = []

        def epoch(self, state: FitState) -> None:
            self.locs.append(state.guide.loc.detach().clone())

    wild = {"optim.loc.lr": rate, "val_fraction": 0.3, "epochs": epochs, "batch_size": 20 if kind == "ml" else 100}
    ends = Ends()
    best = run_small(kind, None, callbacks=[ends], **wild)
    assert best.results["best_epoch"] < epochs
    assert torch.equal(best.posterior.guide.loc, ends.locs[best.results["best_epoch"] - 1])
    last = run_small({"name": kind, "keep": "last"}, tmp_path, **wild)
    assert torch.equal(last.posterior.guide.loc, ends.locs[-1])
    assert last.results["best_epoch"] is None
    assert not torch.equal(ends.locs[-1], best.posterior.guide.loc)
    assert last.recipe.method == {"name": kind, "keep": "last"}
    assert 'keep = "last"' in (tmp_path / "recipe.toml").read_text()
    assert best.recipe.method == {"name": kind}  # as earlier versions wrote it
    if kind != "ml":
        single = {"name": "swa", "of": kind, "start": epochs - 1, "cycle": 1.0, "schedule": "recipe"}
        assert torch.equal(run_small(single, None, **wild).posterior.guide.loc, ends.locs[-1])


def test_what_is_kept_is_best_or_last() -> None:
    with pytest.raises(ValueError, match=r"method\.keep='first' is unknown: pass 'best' or 'last'"):
        make_method({"name": "map", "keep": "first"})


def test_a_point_is_averaged_as_well() -> None:
    seen: list[torch.Tensor] = []

    class Watch(Callback):
        def step(self, state: FitState) -> None:
            seen.append(state.guide.loc.detach().clone())

    run = run_small({"name": "swa", "of": "map", "start": 1}, None, callbacks=[Watch()])
    assert isinstance(run.posterior.guide, AutoPoint)
    ends = torch.stack(seen[len(seen) // 4 - 1 :: len(seen) // 4])  # of epochs 1 to 4; averaging begins after the first
    torch.testing.assert_close(run.posterior.guide.loc, ends[1:].mean(0))
    assert (ends[1] - ends[3]).norm() > 0.01


def test_a_snapshot_goes_on_from_the_one_before() -> None:
    run = run_small({"name": "snapshots", "members": 3}, None)
    first, second, third = (member.loc.detach() for member in run.posterior.guide.members)
    assert torch.equal(first, run_small("svi", None).posterior.guide.loc)  # member 1 is what its kind leaves
    apart = run_small({"name": "ensemble", "of": "svi", "members": 2}, None).posterior.guide.members[1].loc.detach()
    assert 0 < float((second - first).norm()) < 0.5 * float((apart - first).norm())
    assert not torch.equal(third, second)
    still = {f"optim.{group}.lr": 1e-12 for group in ("loc", "scale")}
    frozen = run_small({"name": "snapshots", "members": 2}, None, **still).posterior.guide.members
    torch.testing.assert_close(frozen[0].loc, frozen[1].loc, rtol=0, atol=1e-8)
    assert frozen[0].loc.data_ptr() != frozen[1].loc.data_ptr()


def test_maximum_likelihood_takes_no_weight_on_the_prior() -> None:
    assert {line["kl_weight"] for line in run_small("ml", None).history} == {0.0}
    assert {line["kl_weight"] for line in run_small("map", None, eta=0.5).history} == {0.5}


def test_the_low_rank_guide_trains_by_svi_as_well() -> None:
    run = run_small("svi", None, guide={"name": "low_rank", "rank": 3}, estimator="analytic")
    assert isinstance(run.posterior.guide, AutoLowRankNormal)
    assert run.history[-1]["nll"] < run.history[0]["nll"]


def regression(folder: Path) -> str:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(30, 1)).astype(np.float32)
    y = (np.sin(2 * x[:, 0]) + 0.3 * generator.normal(size=30)).astype(np.float32)
    np.savez(folder / "wave.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    return str(folder / "wave.npz")


SMALL_REGRESSION: dict[str, Any] = {
    "model_args": {"hidden": [4]},
    "val_fraction": 0.0,
    "likelihood": {"name": "gaussian", "noise": 0.5},
    "eta": 1.0,
    "batch_size": 10,
    "data_args": {},
}


@pytest.mark.parametrize("kernel", ["nuts", "hmc"])
def test_chains_from_a_recipe(kernel: str, tmp_path: Path) -> None:
    kind = {"name": kernel, "chains": 2, "warmup": 15, "draws": 10}
    settings = {**SMALL_REGRESSION, "data": regression(tmp_path), "num_samples": 20}
    run = run_small(kind, tmp_path / "run", **settings)
    guide = run.posterior.guide
    assert isinstance(guide, StoredDraws)
    assert (guide.kind, guide.chains, guide.num_draws) == (kernel, 2, 20)
    facts = run.results["facts"]
    assert facts["chains"] == 2
    assert not facts["reference"]
    x = torch.linspace(-1, 1, 5)[:, None]
    before = run.posterior.draws(x, num_samples=20, seed=0)
    assert before.shape == (20, 5, 1) or before.shape == (20, 5)
    torch.testing.assert_close(load(tmp_path / "run").draws(x, num_samples=20, seed=0), before, rtol=0, atol=0)
    # a run that was killed after the first chain takes it from its file and gives the same draws
    (tmp_path / "run" / "results.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoint" / "chain-2")
    first = (tmp_path / "run" / "checkpoint" / "chain-1" / "state.json").stat().st_mtime_ns
    again = run_small(kind, tmp_path / "run", **settings)
    assert (tmp_path / "run" / "checkpoint" / "chain-1" / "state.json").stat().st_mtime_ns == first
    assert torch.equal(again.posterior.guide.draws, guide.draws)


def test_learned_noise_follows_the_draws_of_a_regression(tmp_path: Path) -> None:
    settings = {**SMALL_REGRESSION, "data": regression(tmp_path), "likelihood": "learned_gaussian"}
    for kind in ({"name": "sgld", "lr": 0.01, "draws": 4}, {"name": "ensemble", "members": 2}):
        run = run_small(kind, tmp_path / kind["name"], **settings)
        x = torch.linspace(-1, 1, 5)[:, None]
        found = run.posterior.predict(x, num_samples=4, seed=0)
        again = load(tmp_path / kind["name"]).predict(x, num_samples=4, seed=0)
        assert torch.equal(found.sd, again.sd)
        assert torch.equal(found.mean, again.mean)


def test_what_is_refused(tmp_path: Path) -> None:
    for kind, message in (
        ("bayes", "unknown method 'bayes'; choose one of cyclic_sgld"),
        ({"name": "hwa", "rate": 3}, "method 'hwa' with.*rate"),
        ({"name": "hwa", "variance": "all"}, "variance='all' is unknown"),
        ({"name": "hwa", "start": 9}, r"method\.start=9 is not a number of epochs of 4"),
        ({"name": "hwa", "start": 3.5}, "leave no snapshot in 4 epochs"),
        ({"name": "swa", "schedule": "mine"}, r"method\.schedule='mine'"),
        ({"name": "swa", "cycle": 0}, r"method\.cycle=0"),
        ({"name": "swa", "of": "ml"}, r"method\.of='ml'"),
        ({"name": "ensemble", "members": 0}, r"method\.members=0"),
        ({"name": "ensemble", "of": "committee"}, "unknown method 'committee'"),
        ({"name": "snapshots", "of": "map"}, "method.of='map' does not go on from a guide"),
        ({"name": "snapshots", "of": {"name": "swa", "of": "map"}}, "does not go on from a guide"),
        ({"name": "snapshots", "members": 0}, r"method\.members=0"),
        ({"name": "sgld", "draws": 0}, r"method\.draws=0"),
        ({"name": "sgld", "burn_in": 4}, r"method\.burn_in=4"),
        ({"name": "nuts", "chains": 0}, r"method\.chains=0"),
    ):
        with pytest.raises(ValueError, match=message):
            run_small(kind, tmp_path / "run")
    with pytest.raises(ValueError, match="no posterior that a sampler could draw from"):
        run_small("sgld", None, kl="blundell")
    with pytest.raises(ValueError, match="chains are drawn on the CPU"):
        run_small("nuts", tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()


def test_a_diverging_sampler_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"step \d+.*lower the learning rate"):
        run_small({"name": "sgld", "lr": 1e6}, tmp_path / "run")
    assert not (tmp_path / "run" / "results.json").exists()


def test_its_arviz_export_knows_the_chains(tmp_path: Path) -> None:
    kind = {"name": "nuts", "chains": 2, "warmup": 10, "draws": 6}
    run = run_small(kind, None, **{**SMALL_REGRESSION, "data": regression(tmp_path)})
    x, y = torch.linspace(-1, 1, 5)[:, None], torch.zeros(5)
    idata = run.posterior.to_arviz(x, y, num_samples=12)
    assert dict(idata.posterior.sizes)["chain"] == 2
    assert dict(idata.posterior.sizes)["draw"] == 6
    assert pb is not None
