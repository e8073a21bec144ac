"""Why tests of Pyro's fail with this library's classes: (substitution, test) -> a sentence; * stands for anything."""

GUIDE = "infer/test_autoguide.py::"

_GLOBAL = "The library's guides hold global sites only: no create_plates and no site inside a subsampled plate."
_DIRECT = "A real site is drawn from its Normal itself, so that its KL is analytic, and not as a Delta beside a draw."
_START = "Means start from a law with a name (init_loc=...), not from a function of the site; `assign` sets a value."
_OWN = "Two guides alive in one process never share parameters, so a second one starts anew."
_DISCRETE = "A discrete site is refused with the library's own words, without a link to Pyro's documentation."
_SPHERE = "A point is stored in unconstrained space, and a sphere has no map from there; AutoDelta stores the value."
_PRIVATE = "The test reads private attributes of Pyro's guide (locs, _unpack_latent, its latent site's name)."
_EMPTY = "A program without a latent site is refused with a ValueError; Pyro raises a RuntimeError."

_MEAN_FIELD = "AutoNormal -> AutoMeanFieldNormal"
_DIAGONAL = "AutoDiagonalNormal -> AutoMeanFieldNormal"
_LOW_RANK = "AutoLowRankMultivariateNormal -> AutoLowRankNormal"
_POINT = "AutoDelta -> AutoPoint"

EXPECTED: dict[tuple[str, str], str] = {
    (_MEAN_FIELD, f"{GUIDE}test_scores[AutoNormal]"): _DIRECT,
    (_MEAN_FIELD, f"{GUIDE}test_init_loc_fn[AutoNormal]"): _START,
    (_MEAN_FIELD, f"{GUIDE}test_subsample_model[AutoNormal]"): _GLOBAL,
    (_MEAN_FIELD, f"{GUIDE}test_subsample_guide[Auto*]"): _GLOBAL,
    (_MEAN_FIELD, f"{GUIDE}test_subsample_guide_2[AutoNormal-*]"): _GLOBAL,
    (_MEAN_FIELD, f"{GUIDE}test_discrete_helpful_error[*]"): _DISCRETE,
    (_MEAN_FIELD, f"{GUIDE}test_autonormal_dynamic_model"): _PRIVATE,
    (_MEAN_FIELD, "nn/test_module.py::test_svi_elbomodule_interface[AutoNormal-*-False]"): _OWN,
    (_DIAGONAL, f"{GUIDE}test_scores[AutoDiagonalNormal]"): _DIRECT,
    (_DIAGONAL, f"{GUIDE}test_init_loc_fn[AutoDiagonalNormal]"): _START,
    (_DIAGONAL, f"{GUIDE}test_discrete_helpful_error[*]"): _DISCRETE,
    (_DIAGONAL, f"{GUIDE}test_empty_model_error"): _EMPTY,
    (_DIAGONAL, f"{GUIDE}test_unpack_latent"): _PRIVATE,
    (_LOW_RANK, f"{GUIDE}test_scores[AutoLowRankMultivariateNormal]"): _PRIVATE,
    (_LOW_RANK, f"{GUIDE}test_init_loc_fn[AutoLowRankMultivariateNormal]"): _START,
    (_LOW_RANK, f"{GUIDE}test_discrete_helpful_error[*]"): _DISCRETE,
    (_POINT, f"{GUIDE}test_init_loc_fn[AutoDelta]"): _START,
    (_POINT, f"{GUIDE}test_subsample_model[AutoDelta]"): _GLOBAL,
    (_POINT, f"{GUIDE}test_subsample_guide[AutoDelta-*]"): _GLOBAL,
    (_POINT, f"{GUIDE}test_subsample_guide_2[AutoDelta-*]"): _GLOBAL,
    (_POINT, f"{GUIDE}test_discrete_helpful_error[*]"): _DISCRETE,
    (_POINT, f"{GUIDE}test_sphere_raw_ok[*]"): _SPHERE,
}
