"""
The penalties on VGG-19: the column beside that of `penalties-cvnn`, which has the mathematics.

There lambda_Th is too large by 10 for L2, L1 and the transposed group lasso, and by 100 for the group lasso; the
Bayesian weights win for L2 alone (93.48 against 93.35), and lose by .28 to .43 points elsewhere. VGG-19 is beyond
what a few minutes on a CPU can train, so that there is no scale between smoke, the L2 penalty on an eighth of the maps
and 300 rows, and the source's own.
"""

from pyro_bnn.studies.findings import Finding
from pyro_bnn.studies.penalties_cvnn import PENALTIES, design_of, judge_of
from pyro_bnn.studies.study import Results, Scale, Study, Trial

_RECIPE = "vgg19-cifar10-l2"


def _design(scale: Scale) -> list[Trial]:
    if scale == "source":
        return design_of(_RECIPE, PENALTIES, 5, range(-6, 3), {"budget": "paper", "epochs": 200})
    few = {"data": "mnist-mini", "data_args": {"train_size": 300, "test_size": 300}, "augment": "none", "epochs": 1}
    return design_of(_RECIPE, PENALTIES[:1], 2, (-2, 0), few)


def _judge(results: Results) -> list[Finding]:
    return judge_of(results, [p for p in PENALTIES if any(cell.startswith(f"{p}, ") for cell in results.cells)])


STUDY = Study(
    name="penalties-vgg19",
    claim="On VGG-19, too, the Bayesian layer weights are competitive with the usual ones, and lambda_Th = 1 / p is "
    "too large, by 10 to 10^2.",
    source="Wolinski, Charpiat and Ollivier 2022, An equivalence between Bayesian priors and penalties",
    place="table of accuracies, columns VGG19",
    varied="the penalty, the rule for the layers' weights, and lambda.",
    measured="accuracy on test rows after the last epoch; lambda* chosen on validation rows, mean over seeds.",
    rule="Confirmed if lambda* is below lambda_Th for at least three of the four penalties (97.5 % of bootstrap "
    "samples of the seeds), the Bayesian weights' best accuracy is above the usual weights' less one point, and "
    "accuracy at lambda* above that at lambda_Th (95 % intervals of the mean over penalties); contradicted if any of "
    "them is.",
    not_done="There is no cpu scale. At smoke scale the L2 penalty alone, two seeds and one epoch of 270 digits, "
    "which cannot decide anything.",
    design=_design,
    judge=_judge,
    scales=("smoke", "source"),
)
