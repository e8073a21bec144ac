"""The same chances for a posterior and its twin, and what the table of the zoo says of those that had others."""

import pytest

from pyro_bnn.cards.fair import Chances, chances_of, is_deterministic, unequal
from pyro_bnn.cards.text import readme_table, verdict

MAP = {"name": "map"}
SWA = {"name": "swa", "of": "map", "start": 5}
HWA = {"name": "hwa", "start": 5}


def recipe(method, epochs=20, augment="none"):
    return {"method": method, "epochs": epochs, "augment": augment}


@pytest.mark.parametrize(
    ("method", "chances"),
    [
        (MAP, Chances(False, 1, 20, "none")),
        (HWA, Chances(True, 1, 20, "none")),
        ({"name": "ensemble", "of": HWA, "members": 3}, Chances(True, 3, 60, "none")),
        ({"name": "ensemble", "of": MAP, "members": 5}, Chances(False, 5, 100, "none")),
        ({"name": "snapshots", "of": "svi", "members": 4}, Chances(False, 4, 80, "none")),
        ({"name": "svi"}, Chances(False, 1, 20, "none")),
    ],
)
def test_chances_of_a_method(method, chances):
    assert chances_of(recipe(method)) == chances


def test_an_old_recipe_calls_its_method_posterior():
    assert chances_of({"posterior": SWA, "epochs": 2, "augment": "none"}).averaged


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (MAP, True),
        ({"name": "ml"}, True),
        (SWA, True),
        ({"name": "swa", "of": "svi"}, False),
        ({"name": "snapshots", "of": "map", "members": 2}, True),
        ({"name": "ensemble", "of": SWA, "members": 2}, True),
        ({"name": "ensemble", "of": HWA, "members": 2}, False),
        (HWA, False),
        ({"name": "svi"}, False),
        ({"name": "mc_dropout"}, False),
        ({"name": "sgld"}, False),
    ],
)
def test_what_is_deterministic(method, answer):
    assert is_deterministic(recipe(method)) is answer


def test_what_differs_is_named():
    assert unequal(recipe(HWA), recipe(SWA), 4, 4) == []
    assert unequal(recipe(HWA), recipe(MAP)) == ["averaged and the twin not"]
    ensemble = recipe({"name": "ensemble", "of": HWA, "members": 3}, augment="flip")
    words = ["3 networks against 1", "60 epochs against 20", "augmentation flip against none"]
    assert unequal(ensemble, recipe(SWA), 3, 2) == [*words, "3 settings tried against 2"]


def card(mean, se_rows, se_seeds, unequal=()):
    scores = {"accuracy": 0.9, "pred_nll": 0.3, "ece": 0.01, "epistemic": 0.02}
    row = {**scores, "ece_null": {"mean": 0.01, "upper": 0.02}}
    return {
        "name": f"card{mean:+g}",
        "eta": 1.0,
        "results": [{"s_draws": row, "ood": {"Gaussian noise": {"entropy": 0.7}}}],
        "mean": {"s_draws": scores},
        "shipped": {"bytes": 1000},
        "twin": {
            "results": [{"raw": row, "ood": {"Gaussian noise": {"entropy": 0.8}}}],
            "mean": {"raw": scores, "scaled": scores},
        },
        "differences": {"scaled": {"pred_nll": {"mean": mean, "se_rows": se_rows, "se_seeds": se_seeds}}},
        "unequal": list(unequal),
    }


def test_a_verdict_takes_the_larger_standard_error():
    assert verdict(card(-0.03, 0.01, 0.001)) == "better"
    assert verdict(card(-0.03, 0.01, 0.02)) == "level"
    assert verdict(card(0.05, 0.01, 0.02)) == "worse"
    assert verdict({}) == "no twin"


def test_the_table_shows_both_sides_and_says_what_uncertainty_buys():
    text = readme_table([card(-0.03, 0.01, 0.01, ["averaged and the twin not"]), card(0.01, 0.01, 0.01)])
    first, twin, second = text.splitlines()[2:5]
    assert "-0.0300 ± 0.0100†" in first
    assert "0.800" in twin
    assert "+0.0100 ± 0.0100 |" in second
    assert "Better than the scaled twin beyond two standard errors: `card-0.03`." in text
    assert "uncertainty buys nothing in NLL: `card+0.01`." in text
    assert (
        "† The twin had other chances, so that this is no comparison: `card-0.03` (averaged and the twin not)." in text
    )
