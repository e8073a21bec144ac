"""Studies: rules with exact answers, trials that are run once, outcomes that come out again."""

import json
import math
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pyro_bnn.cli import main
from pyro_bnn.studies import Study, Trial, run_study
from pyro_bnn.studies.findings import Finding, equal, holds, holm, likely, more, verdict_of
from pyro_bnn.studies.gallery import gallery, outcomes_in, summary, write_gallery
from pyro_bnn.studies.picture import picture
from pyro_bnn.studies.run import find_study, outcome_of, study_names, trials_of
from pyro_bnn.studies.study import Results
from pyro_bnn.studies.trials import run_trials, took

CALLS: list[int] = []
"""Seeds that `count` was asked for."""


def count(seed: int, offset: float = 0.0) -> dict[str, float]:
    CALLS.append(seed)
    return {"value": math.sin(seed) + offset}


def stop_at_two(seed: int) -> dict[str, float]:
    if seed == 2:
        raise KeyboardInterrupt
    return count(seed)


def sleep(seed: int) -> dict[str, float]:
    time.sleep(0.4)
    return {"value": 1.0}


def trials(function: str, seeds: int = 4, **arguments: Any) -> list[Trial]:
    return [Trial(function, s, compute=f"{__name__}:{function}", arguments=arguments) for s in range(seeds)]


def results_of(**cells: list[float | None]) -> Results:
    given = [
        Trial(cell, s, compute="x:y", arguments={"cell": cell}) for cell, v in cells.items() for s in range(len(v))
    ]
    values = [{"value": value} for numbers in cells.values() for value in numbers]
    return Results(given, {trial.key(): value for trial, value in zip(given, values, strict=True)})


# -- the rules -----------------------------------------------------------------------------------------------------


def test_more_is_the_paired_t_test() -> None:
    d = np.array([0.3, 0.1, 0.4, 0.2, 0.25])
    finding = more("up", d)
    half = stats.t.ppf(0.975, 4) * d.std(ddof=1) / math.sqrt(5)
    assert (finding.low, finding.high) == pytest.approx((d.mean() - half, d.mean() + half))
    assert finding.p == pytest.approx(stats.t.sf(d.mean() / (d.std(ddof=1) / math.sqrt(5)), 4))
    assert finding.verdict == "confirmed"
    assert more("up", -d).verdict == "contradicted"
    assert more("up", d - d.mean()).verdict == "inconclusive"


def test_equal_is_two_one_sided_tests() -> None:
    d = np.array([0.01, -0.02, 0.015, 0.0, -0.01])
    finding = equal("same", d, 0.05)
    half = stats.t.ppf(0.95, 4) * d.std(ddof=1) / math.sqrt(5)
    assert (finding.low, finding.high) == pytest.approx((d.mean() - half, d.mean() + half))
    assert finding.verdict == "confirmed"
    assert finding.p is not None
    assert finding.p < 0.05
    assert equal("same", d, 0.005).verdict == "inconclusive"
    assert equal("same", d + 0.2, 0.05).verdict == "contradicted"
    assert equal("same", 10 * d, 0.05).verdict == "inconclusive"
    with pytest.raises(ValueError, match="margin=0"):
        equal("same", d, 0)


def test_pairs_without_numbers_are_left_out_and_two_pairs_say_nothing() -> None:
    assert more("up", np.array([0.3, np.nan, 0.1, 0.4, 0.2])).pairs == 4
    few = more("up", np.array([5.0, np.nan, 5.1]))
    assert (few.pairs, few.verdict, few.p) == (2, "inconclusive", None)
    assert math.isnan(few.low)


@pytest.mark.parametrize("rounding", [0.0, 1e-16])
def test_differences_without_a_spread_need_five_pairs(rounding: float) -> None:
    """One number computed in several orders is no sample: SciPy warned of it, and gave a p-value of 1e-33."""
    d = 0.3 + rounding * np.array([0.0, 1.0, 2.0, 1.0, 0.0])
    for rule in (lambda d: more("up", d), lambda d: equal("same", d, 0.5)):
        assert rule(d[:4]).verdict == "inconclusive"
        finding = rule(d)
        assert (finding.verdict, finding.p, finding.low) == ("confirmed", 0.0, finding.high)
    assert equal("same", d, 0.2).verdict == "contradicted"
    assert more("up", -d).verdict == "contradicted"
    assert (more("up", np.zeros(5)).verdict, equal("same", np.zeros(5), 0.1).verdict) == ("inconclusive", "confirmed")


def test_the_false_alarm_rate_is_that_of_the_level() -> None:
    """One-sided 2.5 % of 4,000 null claims: 100 expected, within four standard deviations (9.9) of it."""
    random = np.random.default_rng(0)
    confirmed = sum(more("null", random.normal(size=5)).verdict == "confirmed" for _ in range(4000))
    assert abs(confirmed - 100) < 40


def test_exact_claims_have_no_chance_in_them() -> None:
    assert holds("half", 0.5 + 1e-9, 0.5, 1e-6).verdict == "confirmed"
    assert holds("half", 0.51, 0.5, 1e-6).verdict == "contradicted"
    assert holds("half", math.nan, 0.5, 1e-6).verdict == "contradicted"


def test_bootstrap_distributions() -> None:
    random = np.random.default_rng(0)
    assert likely("up", random.normal(3, 1, 2000)).verdict == "confirmed"
    assert likely("up", random.normal(-3, 1, 2000)).verdict == "contradicted"
    assert likely("up", random.normal(0, 1, 2000)).verdict == "inconclusive"


def test_holm_is_that_of_the_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_a_claim_is_confirmed_if_all_of_it_is() -> None:
    yes, no = holds("a", 1, 1, 0.1), holds("b", 2, 1, 0.1)
    open_ = more("c", np.array([1.0, -1.0, 0.5]))
    aside = Finding("d", "contradicted", 0.0, 0.0, 0.0, None, 0, decides=False)
    assert verdict_of([yes, aside]) == "confirmed"
    assert verdict_of([yes, open_]) == "inconclusive"
    assert verdict_of([yes, open_, no]) == "contradicted"
    with pytest.raises(ValueError, match="no finding decides"):
        verdict_of([aside])


# -- trials --------------------------------------------------------------------------------------------------------


def test_a_trial_is_run_once_whoever_asks(tmp_path: Path) -> None:
    CALLS.clear()
    first = run_trials(trials("count"), tmp_path)
    again = run_trials([*trials("count"), *trials("count", offset=1.0)], tmp_path)
    assert CALLS == [0, 1, 2, 3, 0, 1, 2, 3]
    assert all(again[key] == record for key, record in first.items())
    assert len(again) == 8


def test_records_of_another_version_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    run_trials(trials("count", 1), tmp_path)
    monkeypatch.setattr("pyro_bnn.studies.trials.__version__", "99")
    run_trials(trials("count", 1), tmp_path)
    run_trials(trials("count", 1), tmp_path)
    assert CALLS == [0, 0]


def test_what_was_broken_off_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    CALLS.clear()
    with pytest.raises(KeyboardInterrupt):
        run_trials(trials("stop_at_two"), tmp_path)
    assert CALLS == [0, 1]
    done: list[tuple[int, int]] = []
    with pytest.raises(KeyboardInterrupt):
        run_trials(trials("stop_at_two"), tmp_path, done=lambda finished, total: done.append((finished, total)))
    assert CALLS == [0, 1]
    assert done == [(2, 4)]


def test_the_content_of_a_trial_is_what_its_result_depends_on() -> None:
    base = Trial("a", 0, "perceptron-and", changes={"epochs": 3})
    assert base.key() == Trial("another cell", 0, "perceptron-and", changes={"epochs": 3}).key()
    assert base.key() != Trial("a", 1, "perceptron-and", changes={"epochs": 3}).key()
    assert base.key() != Trial("a", 0, "perceptron-and", changes={"epochs": 4}).key()
    assert base.command() == "pyro-bnn train perceptron-and --set 'epochs=3' --set seed=0"
    with pytest.raises(ValueError, match="a recipe or a function"):
        Trial("a", 0)


def test_processes_side_by_side_leave_the_same_records(tmp_path: Path) -> None:
    cases = [Trial("perceptron", seed, "perceptron-and", changes={"epochs": 3, "num_samples": 2}) for seed in range(2)]
    apart = run_trials(cases, tmp_path / "apart", jobs=2)
    assert apart == run_trials(cases, tmp_path / "one", jobs=1)
    assert not list((tmp_path / "apart").rglob("*.safetensors"))
    record = next(iter(apart.values()))
    assert {"accuracy", "pred_nll", "train_kl", "history"} <= set(record)
    with pytest.raises(ValueError, match="jobs=0"):
        run_trials(cases, tmp_path, jobs=0)


@pytest.mark.filterwarnings("ignore:.*has no manifest:FutureWarning")
def test_what_cannot_be_gone_on_with_is_begun_anew(tmp_path: Path) -> None:
    """A state of the former format, which an earlier version left when it was killed."""
    case = Trial("perceptron", 0, "perceptron-and", changes={"epochs": 3, "num_samples": 2})
    expected = run_trials([case], tmp_path / "whole")
    left = tmp_path / "store" / "unfinished" / case.key()
    (left / "checkpoint").mkdir(parents=True)
    (left / "recipe.toml").write_text(case.settled().to_toml())
    (left / "checkpoint" / "last.pt").write_bytes(b"a pickle")
    assert run_trials([case], tmp_path / "store") == expected
    assert not left.exists()


def test_a_diverged_training_is_counted(tmp_path: Path) -> None:
    wild = {"epochs": 3, "optim": {"loc": {"name": "sgd", "lr": 1e30}, "scale": {"name": "sgd", "lr": 1e30}}}
    case = Trial("wild", 0, "linear-regression", changes=wild)
    records = run_trials([case], tmp_path)
    assert "diverged" in records[case.key()]
    results = Results([case], records)
    assert len(results.diverged()) == 1
    assert np.isnan(results.values("wild", "pred_nll")).all()


def test_results_pair_by_seed() -> None:
    results = results_of(a=[1.0, 2.0, None], b=[0.5, 1.0, 1.0])
    np.testing.assert_array_equal(results.paired("a", "b", "value"), [0.5, 1.0, np.nan])
    assert results.cells == ("a", "b")


# -- outcomes ------------------------------------------------------------------------------------------------------


def a_study() -> Study:
    def design(scale: str) -> list[Trial]:
        return [
            Trial(cell, seed, compute=f"{__name__}:count", arguments={"offset": offset})
            for cell, offset in (("plain", 0.0), ("raised", 0.5))
            for seed in range(5)
        ]

    def judge(results: Results) -> list[Finding]:
        differences = results.paired("raised", "plain", "value")
        return [more("raised is above plain", differences), equal("by a half", differences - 0.5, 0.1, decides=False)]

    words = {
        "claim": "More < is | more.",
        "source": "A book",
        "place": "page 1",
        "varied": "offset.",
        "measured": "it.",
    }
    return Study("counting", **words, rule="r.", not_done="n.", design=design, judge=judge, metric=("value", "value"))


def test_the_same_seeds_give_the_same_outcome(tmp_path: Path) -> None:
    study = a_study()
    outcomes = []
    for name in ("first", "second"):
        given = trials_of(study, "cpu")
        outcomes.append(outcome_of(study, "cpu", Results(given, run_trials(given, tmp_path / name))))
    assert json.dumps(outcomes[0], sort_keys=True) == json.dumps(outcomes[1], sort_keys=True)
    assert outcomes[0]["verdict"] == "confirmed"
    assert Finding.from_dict(outcomes[0]["findings"][0]).pairs == 5


def test_what_trials_took_is_what_was_computed(tmp_path: Path) -> None:
    slept, earlier = trials("sleep", 2)
    run_trials([slept], tmp_path)
    measured = took([slept, slept], tmp_path)
    assert list(measured) == ["cpu_seconds"]
    assert measured["cpu_seconds"] < 0.2  # a clock says 0.4 and more
    (tmp_path / f"{earlier.key()}.seconds").write_text("2.5\n")  # by a clock, as it was measured before
    (tmp_path / f"{slept.key()}.seconds").write_text("100\n")
    assert took([slept, earlier], tmp_path) == {**measured, "seconds": 2.5}


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"seconds": 120.0}, "They took 2.0 minutes by the clock, beside other work."),
        ({"cpu_seconds": 90.0}, "They took 1.5 minutes of a processor."),
        (
            {"cpu_seconds": 90.0, "seconds": 6.0},
            "1.5 minutes of a processor, and those timed otherwise 0.1 minutes by the",
        ),
        (None, "5 seeds. Not done"),
    ],
)
def test_the_gallery_reads_what_trials_took(tmp_path: Path, run: dict[str, float] | None, words: str) -> None:
    given = trials_of(a_study(), "cpu")
    outcome = outcome_of(a_study(), "cpu", Results(given, run_trials(given, tmp_path / "store")))
    (tmp_path / "counting.cpu.json").write_text(json.dumps(outcome))
    if run is not None:
        (tmp_path / "counting.cpu.run.json").write_text(json.dumps(run))
    assert words in gallery(outcomes_in(tmp_path))


def test_a_study_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = sys.modules[__name__]
    module.STUDY = a_study()  # type: ignore[attr-defined]
    name = f"{__name__}:STUDY"
    assert find_study(name).name == "counting"
    assert main(["study", name, "--list"]) == 0
    assert "plain, seed 0" in capsys.readouterr().out
    assert run_study(name, out=tmp_path, store=tmp_path / "store")["verdict"] == "confirmed"
    assert sorted(path.name for path in tmp_path.glob("counting*")) == [
        "counting.cpu.json",
        "counting.cpu.run.json",
        "counting.cpu.svg",
    ]
    page = write_gallery(tmp_path)
    text = page.read_text()
    assert "1 claim tested: 1 confirmed" in text
    assert "More < is \\| more." in text
    assert main(["study", "countng"]) == 2
    assert "unknown study 'countng'" in capsys.readouterr().err
    assert main(["study", name, "--scale", "huge"]) == 2


def test_pictures_are_whole_and_escape_what_they_say(tmp_path: Path) -> None:
    given = trials_of(a_study(), "cpu")
    outcome = outcome_of(a_study(), "cpu", Results(given, run_trials(given, tmp_path)))
    root = ElementTree.fromstring(picture(outcome))
    text = "".join(root.itertext())
    assert "More < is | more." in text
    assert "raised is above plain: confirmed" in text
    circles = [node for node in root.iter() if node.tag.endswith("circle")]
    assert len(circles) == 10 + 2 + 2  # seeds, means, estimates


@pytest.mark.parametrize("name", study_names())
def test_every_study_says_what_it_tests(name: str) -> None:
    study = find_study(name)
    assert study.name == name
    for words in (study.claim, study.source, study.place, study.varied, study.measured, study.rule, study.not_done):
        assert len(words) > 3
    for scale in study.scales:
        given = trials_of(study, scale)
        assert len({trial.key() for trial in given}) <= len(given)
        if any(trial.recipe for trial in given) and scale != "smoke":
            assert len({trial.seed for trial in given}) >= 5, "fewer than five seeds"
        for trial in given[:: max(len(given) // 5, 1)]:
            assert trial.content()


def test_the_shipped_outcomes_are_those_of_the_rules_that_stand() -> None:
    folder = Path(__file__).parents[2] / "docs" / "studies"
    outcomes = outcomes_in(folder)
    for outcome in outcomes:
        study = find_study(outcome["study"])
        assert (outcome["claim"], outcome["rule"]) == (study.claim, study.rule)
        assert outcome["verdict"] == verdict_of([Finding.from_dict(finding) for finding in outcome["findings"]])
    page = folder.with_suffix(".md")
    if outcomes:
        assert page.read_text() == gallery(outcomes), "write it again: python -m pyro_bnn.studies docs/studies"
        assert summary(outcomes) in page.read_text()
