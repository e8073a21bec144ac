"""The references of the package: what is shipped, how it is made, and what is compared with it."""

import json
import math
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor, nn

import pyro_bnn as pb
from benchmarks import references as table
from pyro_bnn.common.errors import BadFile
from pyro_bnn.guides import AutoMeanFieldNormal, StoredDraws
from pyro_bnn.inference.samplers.mcmc import run_chain
from pyro_bnn.models import BNN, likelihoods, priors
from pyro_bnn.recipe import Recipe
from pyro_bnn.references import PROGRAMS, Reference, distance, load_reference, reference_names
from pyro_bnn.references.calibration import calibration
from pyro_bnn.references.compare import FLOOR, METHODS, row, settings_of
from pyro_bnn.references.distance import LEVELS, distance_to, quantiles_of
from pyro_bnn.references.exact import linear_posterior, linear_predictions
from pyro_bnn.references.make import make_reference, rows_of
from pyro_bnn.references.programs import NOISE, function_draws, gamma_network, program_of, quantities, source
from pyro_bnn.references.stored import DRAWS, FACTS, SHIPPED, read_rows, write_reference
from pyro_bnn.references.widths import widths

NAMES = reference_names()
LINE = "conjugate-regression"


# -- what is shipped ---------------------------------------------------------------------------------------------------


def test_the_reference_that_is_known_in_closed_form_is_there() -> None:
    assert LINE in NAMES
    assert len(PROGRAMS) == 6


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_reference_keeps_the_rule(name: str) -> None:
    reference = load_reference(name)
    assert reference.misses() == []
    facts = reference.facts
    assert facts["draws"] >= 10_000
    assert facts["rhat"] < 1.01
    assert facts["divergences"] == 0
    assert facts["method"]["name"] == "nuts"
    assert facts["lag_1_of_shipped"] < 0.05  # posteriordb's mark, on average over the quantities


@pytest.mark.parametrize("name", NAMES)
def test_the_arrays_of_a_reference_belong_together(name: str) -> None:
    reference = load_reference(name)
    draws, count = reference.functions.shape
    assert draws == reference.facts["shipped"]
    assert count == reference.facts["quantities"] == len(reference.mean)
    assert reference.quantiles.shape == (200, count)
    assert bool((reference.quantiles.diff(dim=0) >= 0).all())
    # the shipped draws are a tenth of all: their mean is within 5.5 standard errors of a tenth of the bulk ESS
    error = reference.sd / math.sqrt(min(draws, reference.facts["ess_bulk"] / 10))
    assert float(((reference.functions.double().mean(0) - reference.mean) / error).abs().max()) < 5.5
    assert 0.85 < float((reference.functions.double().std(0) / reference.sd).mean()) < 1.15
    if reference.weights is not None:  # the functions are those of the weights
        recipe = Recipe.build(program_of(name).settings())
        model, guide = program_and_draws(recipe, reference.weights.float(), reference.x)
        for s in (0, 7, draws - 1):
            found = quantities(model, guide.values(guide.draws[s]), reference.at)
            torch.testing.assert_close(found, reference.functions[s].double(), rtol=1e-4, atol=1e-4)


def program_and_draws(recipe: Recipe, weights: Tensor, x: Tensor) -> tuple[Any, StoredDraws]:
    from pyro_bnn.assemble import build_named_model, load_rows, resolve

    model = build_named_model(resolve(recipe, load_rows(recipe)), len(x))
    return model, StoredDraws.from_flat(model, weights, x)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "last-layer"])
def test_the_rows_come_out_again(name: str) -> None:
    kept, again = read_rows(name), rows_of(name)
    assert set(kept) == {"x", "y", "at"}
    for key, value in again.items():
        torch.testing.assert_close(kept[key], value, rtol=1e-6, atol=1e-6)
    assert source(name).x_train.shape == tuple(kept["x"].shape)


def test_the_features_come_out_again() -> None:
    kept, again = read_rows("last-layer"), rows_of("last-layer")
    assert torch.equal(kept["y"], again["y"])
    torch.testing.assert_close(kept["x"], again["x"], rtol=1e-4, atol=1e-4)
    assert kept["x"].shape == (200, 84)


def test_all_of_it_is_small_and_nothing_is_pickled() -> None:
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_000_000
    assert {path.suffix for path in files} <= {".safetensors", ".json"}


def test_damage_is_noticed(tmp_path: Path) -> None:
    for path in (SHIPPED / LINE).iterdir():
        (tmp_path / LINE).mkdir(exist_ok=True)
        (tmp_path / LINE / path.name).write_bytes(path.read_bytes())
    assert load_reference(LINE, tmp_path).name == LINE
    content = bytearray((tmp_path / LINE / DRAWS).read_bytes())
    content[-1] ^= 1
    (tmp_path / LINE / DRAWS).write_bytes(content)
    with pytest.raises(BadFile, match=DRAWS):
        load_reference(LINE, tmp_path)
    with pytest.raises(ValueError, match="'line' is no reference: choose one of logistic-regression"):
        load_reference("line")
    with pytest.raises(ValueError, match="has no draws in"):
        load_reference("last-layer", tmp_path)


# -- the exact one -----------------------------------------------------------------------------------------------------


def test_the_closed_form_is_the_integral_over_a_grid() -> None:
    """Of a slope and an intercept, by sums over 401 x 401 points."""
    x, y = torch.tensor([[0.5], [-1.0], [2.0]]), torch.tensor([0.3, -0.2, 1.5])
    mean, covariance = linear_posterior(x, y, 0.7, 1.3)
    grid = torch.linspace(-6, 6, 401, dtype=torch.float64)
    slope, intercept = torch.meshgrid(grid, grid, indexing="ij")
    log_joint = -(slope.square() + intercept.square()) / (2 * 1.3**2)
    for n in range(3):
        log_joint = log_joint - (y[n] - slope * x[n, 0] - intercept).square() / (2 * 0.7**2)
    p = torch.softmax(log_joint.flatten(), 0)
    w = torch.stack([slope.flatten(), intercept.flatten()], 1)
    torch.testing.assert_close(mean, p @ w, rtol=1e-6, atol=1e-8)
    centred = w - p @ w
    torch.testing.assert_close(covariance, (p[:, None] * centred).T @ centred, rtol=1e-5, atol=1e-8)
    at_mean, at_sd = linear_predictions(x, mean, covariance)
    line = w[:, :1] * x[:, 0].double() + w[:, 1:]
    torch.testing.assert_close(at_mean, p @ line, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(at_sd, (p @ (line - p @ line).square()).sqrt(), rtol=1e-5, atol=1e-8)


def exact_line(reference: Reference) -> tuple[Tensor, Tensor]:
    return linear_predictions(reference.at, *linear_posterior(reference.x, reference.y, NOISE[LINE], 1.0))


def test_the_shipped_draws_of_the_line_are_those_of_the_closed_form() -> None:
    """Means and deviations of 32 quantities within 4.5 standard errors of the least ESS (false alarm below 1e-3)."""
    reference = load_reference(LINE)
    mean, sd = exact_line(reference)
    ess = reference.facts["ess_bulk"]
    assert ess > 4000
    assert float(((reference.mean - mean) / sd).abs().max()) < 4.5 / math.sqrt(ess)
    assert float((reference.sd / sd - 1).abs().max()) < 4.5 / math.sqrt(2 * ess / 3)  # the ESS of squares is smaller
    normal = mean + sd * torch.special.ndtri(LEVELS)[:, None]
    inner = slice(20, 180)
    assert float(((reference.quantiles[inner] - normal[inner]) / sd).abs().max()) < 0.15


# -- making ------------------------------------------------------------------------------------------------------------


def test_a_reference_is_made_and_says_what_it_misses(tmp_path: Path) -> None:
    write_reference(LINE, tmp_path / "out", rows=read_rows(LINE))
    small = {"chains": 2, "warmup": 30, "draws": 40}
    facts = make_reference(LINE, tmp_path / "runs", folder=tmp_path / "out", **small)
    reference = load_reference(LINE, tmp_path / "out")
    assert facts == reference.facts
    assert (facts["draws"], facts["shipped"], facts["quantities"]) == (80, 8, 32)
    assert reference.misses()[0] == "80 draws, fewer than 10000"
    state = next((tmp_path / "runs").glob("*/checkpoint/chain-1/state.json"))
    before = state.stat().st_mtime_ns
    assert make_reference(LINE, tmp_path / "runs", folder=tmp_path / "out", **small) == facts
    assert state.stat().st_mtime_ns == before  # finished chains are not drawn again
    assert json.loads((tmp_path / "out" / LINE / FACTS).read_text())["method"]["start"] == "prior"


def test_the_gamma_network_has_the_density_that_its_page_states() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 1, generator=generator).double(), torch.randn(5, generator=generator).double()
    values = {
        "precision": torch.tensor(0.8).double(),
        "noise_precision": torch.tensor(7.0).double(),
    }
    for name, shape in (("w1", (1, 6)), ("b1", (6,)), ("w2", (6,)), ("b2", (1,))):
        values[name] = torch.randn(shape, generator=generator).double()
    trace = pyro.poutine.trace(pyro.poutine.condition(gamma_network, data=values)).get_trace(x, y)
    gamma, normal = torch.distributions.Gamma, torch.distributions.Normal
    expected = gamma(3.0, 3.0).log_prob(values["precision"]) + gamma(6.0, 0.6).log_prob(values["noise_precision"])
    for name in ("w1", "b1", "w2", "b2"):
        expected = expected + normal(0.0, 0.8**-0.5).log_prob(values[name]).sum()
    hidden = torch.tanh(x * values["w1"] + values["b1"])
    mean = (hidden * values["w2"]).sum(1) / math.sqrt(6) + values["b2"]
    expected = expected + normal(mean, 7.0**-0.5).log_prob(y).sum()
    torch.testing.assert_close(trace.log_prob_sum(), expected)


def test_nuts_draws_a_program_with_gamma_priors() -> None:
    rows = read_rows("gamma-network")
    chain = run_chain(gamma_network, (rows["x"], rows["y"]), warmup=10, draws=4, start="prior", max_tree_depth=3)
    assert bool((chain.samples["precision"] > 0).all())
    assert chain.samples["w1"].shape == (4, 1, 6)


# -- comparing ---------------------------------------------------------------------------------------------------------


def test_the_distance_of_normals_is_known() -> None:
    """W1 of N(m, r^2 s^2) to N(0, s^2) without a shift is |r - 1| s E|z|, without a change of width |m|."""
    z = torch.special.ndtri(LEVELS)[:, None].expand(-1, 2) * torch.tensor([1.0, 3.0]).double()
    sd = torch.tensor([1.0, 3.0]).double()
    found = distance_to(z * 2, z, torch.zeros(2).double(), sd)
    # between quantiles of 200 draws at 200 levels, interpolated, the tails are short: 2.7 % here
    assert found["wasserstein"] == pytest.approx(math.sqrt(2 / math.pi), rel=0.03)
    assert found["mean"] == pytest.approx(0, abs=1e-9)
    assert found["sd_ratio"] == pytest.approx(2, rel=0.02)
    moved = distance(z + 0.5 * sd, z)
    assert moved["wasserstein"] == pytest.approx(0.5 / float(z[:, 0].std()), rel=1e-9)
    assert moved["mean"] == pytest.approx(0.5 / float(z[:, 0].std()), rel=1e-9)
    point = distance(z.mean(0, keepdim=True), z)
    assert point["sd_ratio"] == 0
    assert quantiles_of(z).shape == (200, 2)


def test_a_posterior_is_compared_by_its_functions() -> None:
    reference = load_reference(LINE)
    mean, covariance = linear_posterior(reference.x, reference.y, NOISE[LINE], 1.0)
    draws = torch.distributions.MultivariateNormal(mean, covariance).sample((400,))
    model = BNN(nn.Linear(3, 1), priors.Normal(), likelihoods.Gaussian(NOISE[LINE]), num_data=30)
    exact = pb.Posterior(model, StoredDraws.from_flat(model, draws.float()))
    near = reference.distance(exact, draws=400)
    assert near["wasserstein"] < 0.15  # 400 draws: standard errors of .05 of the mean
    assert near["sd_ratio"] == pytest.approx(1, abs=0.15)
    far = reference.distance(pb.Posterior(model, AutoMeanFieldNormal(model, init_loc="zeros")), draws=50)
    assert far["wasserstein"] > 1


def test_of_classes_the_centred_logits_are_compared() -> None:
    model = BNN(nn.Linear(2, 3), priors.Normal(), likelihoods.Categorical(), num_data=4)
    x, point = torch.randn(4, 2), AutoMeanFieldNormal(model, init_scale=1e-6)
    found = function_draws(pb.Posterior(model, point), x, 2)
    weight, bias = (point.median()[f"net.{name}"] for name in ("weight", "bias"))
    logits = x @ weight.T + bias
    expected = (logits - logits.mean(1, keepdim=True))[:, :2].reshape(-1).double()
    torch.testing.assert_close(found, expected.expand(2, -1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["MAP", "low rank 10 (trajectory)", "SGLD"])
def test_a_row_of_the_table(method: str) -> None:
    found = row(LINE, method, passes=40)
    assert set(found) == {"wasserstein", "mean", "sd_ratio"}
    assert all(math.isfinite(value) for value in found.values())
    assert (found["sd_ratio"] == 0) == (method == "MAP")


@pytest.mark.slow
def test_full_rank_reaches_the_line() -> None:
    """Its family holds this posterior: after 1,500 steps it is as near as NUTS of other seeds, about .05."""
    found = row(LINE, "full rank", passes=1500)
    assert found["wasserstein"] < 0.12
    assert found["sd_ratio"] == pytest.approx(1, abs=0.1)


def test_every_method_is_refused_or_has_the_same_passes() -> None:
    for method in METHODS:
        recipe = Recipe.build(settings_of(LINE, method, 3000, 0))
        assert recipe.epochs * recipe.method.get("members", 1) == 3000
        assert recipe.eta == 1
    assert "refused" in row("gamma-network", "MC dropout, 0.1", passes=20) if "gamma-network" in NAMES else True
    with pytest.raises(ValueError, match="method 'magic' is not in the table"):
        row(LINE, "magic")


def test_calibration_of_a_guide() -> None:
    """Mean field trained all at once and full rank one by one; a guide that has hardly moved is found out."""
    found = calibration(LINE, "mean field", datasets=20, steps=5, draws=29)
    assert found["verdict"] != "calibrated"
    assert found["p"] < 0.05
    assert found["quantities"] == 5
    assert calibration(LINE, "full rank", datasets=2, steps=3, draws=9)["datasets"] == 2
    assert calibration(LINE, "NUTS", datasets=2, draws=4)["quantities"] == 5
    with pytest.raises(ValueError, match="guide='wide' is not compared"):
        calibration(LINE, "wide")


def test_widths_are_in_units_of_the_exact_ones() -> None:
    """Of independent weights the best have sqrt(1 - rho^2) of the deviations, for any guide that stays so."""
    found = widths("mean field", steps=3, members=2)
    assert found["independent"] == pytest.approx(math.sqrt(1 - found["correlation"] ** 2), rel=1e-6)
    assert found["correlation"] < -0.85
    assert found["least"] <= found["ratio"] <= found["most"] < 0.3  # they start at .0181
    with pytest.raises(ValueError, match="guide='wide' is not compared"):
        widths("wide")


@pytest.mark.slow
def test_guides_with_correlations_find_the_widths() -> None:
    """Low rank within 5 %; full rank, which learns its correlations more slowly, is at .93 after as many steps."""
    for guide in ("low rank 1", "low rank 5"):
        assert widths(guide)["ratio"] == pytest.approx(1, abs=0.05), guide
    assert 0.9 < widths("full rank")["ratio"] < 1.05
    found = widths("mean field")
    assert found["ratio"] == pytest.approx(found["independent"], rel=0.05)


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_shows_what_was_run_and_what_was_not(tmp_path: Path) -> None:
    arguments = ["--store", str(tmp_path), "--json", str(tmp_path / "t.json"), "--out", str(tmp_path / "t.md")]
    some = ["--programs", LINE, "--methods", "MAP", "mean field", "--passes", "30", "--datasets", "2", "--steps", "3"]
    table.main([*arguments, *some, "--only", "distances"])
    table.main([*arguments, *some, "--only", "calibration"])
    text = (tmp_path / "t.md").read_text()
    kept = json.loads((tmp_path / "t.json").read_text())
    assert f"| MAP | {kept['distances'][LINE]['MAP']['wasserstein']:.3f} |" in text
    assert f"| {FLOOR} | not run | | |" in text
    assert "| full rank | not run |  |  |" in text
    assert f"| `{LINE}` | mean field | {kept['calibration'][LINE]['mean field']['verdict']} |" in text
    (tmp_path / "t.md").unlink()
    table.main([*arguments, "--page"])
    assert (tmp_path / "t.md").read_text() == text


def test_the_committed_page_is_made_from_the_committed_figures() -> None:
    found = json.loads((table.ROOT / "benchmarks" / "references.json").read_text())
    assert (table.ROOT / "docs" / "references.md").read_text() == table.page(found)
