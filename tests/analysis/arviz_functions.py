"""
Which of ArviZ' functions run on exports of which kind of posterior: the tables of docs/arviz.md.

`python -m tests.analysis.arviz_functions` writes the table of the ArviZ that is installed; the other one stays.
"""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoNormal

from pyro_bnn.analysis import from_pyro_svi
from pyro_bnn.analysis.arviz import groups_of, import_arviz
from pyro_bnn.analysis.arviz.versions import is_tree
from pyro_bnn.guides import AutoDropout, AutoLowRankNormal, AutoMeanFieldNormal, AutoPoint, Ensemble, StoredDraws
from pyro_bnn.posterior import Posterior
from tests.analysis.conftest import Case, classifier, regressor

PAGE = Path(__file__).parents[2] / "docs" / "arviz.md"
DRAWS = 40
HISTORY = [{"epoch": e, "nll": 1.0 / e, "kl": 2.0, "loss": 3.0, "val_nll": 1.1, "seconds": 1.0} for e in (1, 2, 3)]


def chains(model: Any, number: int = 2, draws: int = DRAWS // 2, energy: bool = True) -> StoredDraws:
    """Draws as a sampler leaves them."""
    size = sum(p.sample().numel() for p in model.priors().values())
    guide = StoredDraws(
        model,
        num_draws=number * draws,
        chains=number,
        kind="nuts",
        stats=["energy", "diverging"] if energy else [],
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        guide.draws.copy_(0.3 * torch.randn(number * draws, size, generator=generator))
        if energy:
            guide.get_buffer("stat_energy").copy_(torch.randn(number * draws, generator=generator))
    return guide


KINDS: dict[str, Callable[[Any], Any]] = {
    "svi": lambda model: AutoMeanFieldNormal(model, init_rho=-1.0),
    "low_rank": lambda model: AutoLowRankNormal(model, rank=2),
    "nuts": chains,
    "ensemble": lambda model: Ensemble(model, [AutoPoint(model), AutoPoint(model)]),
    "map": AutoPoint,
    "mc_dropout": lambda model: AutoDropout(model, rate=0.5, sites="*0.weight"),
}


def refit(case: Case, kind: str) -> Posterior:
    """The model of a case with a guide of another kind."""
    return Posterior(case.posterior.model, KINDS[kind](case.posterior.model), case.posterior.info)


def exports() -> dict[str, Any]:
    """One export of every kind, of a few small sites."""
    case, numbers = classifier(), regressor()
    options: Any = {"split": "train", "history": HISTORY}
    made = {}
    for kind in KINDS:
        torch.manual_seed(0)
        made[kind] = refit(case, kind).to_arviz(case.x, case.y, DRAWS, **options)
    tempered = refit(case, "svi")
    tempered.info["eta"] = 0.1
    made["svi, eta = 0.1"] = tempered.to_arviz(case.x, case.y, DRAWS, **options)
    made["regression, svi"] = numbers.posterior.to_arviz(numbers.x, numbers.y, DRAWS, **options)
    made["`from_pyro_svi`"] = from_pyro_svi(line, AutoNormal(line), numbers.x, numbers.y, num_samples=DRAWS)
    return made


def line(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
    """A program that anybody could have written."""
    with pyro.plate("feature", x.shape[1]):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
    sd = pyro.sample("sd", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ w, sd), obs=y)


def small(idata: Any) -> dict[str, Any]:
    """The name of the smallest site of two numbers or more, for plots with a panel for each number."""
    sites = idata.posterior.data_vars
    sizes = {str(name): values.size // (values.sizes["chain"] * values.sizes["draw"]) for name, values in sites.items()}
    return {"var_names": [min((name for name in sizes if sizes[name] > 1), key=sizes.__getitem__)]}


def _compare(az: Any, idata: Any) -> Any:
    return az.compare({"one": idata, "other": idata})


def _khat(az: Any, idata: Any) -> Any:
    return az.plot_khat(az.loo(idata, pointwise=True))


def _plain(name: str) -> Callable[[Any, Any], Any]:
    return lambda az, idata: getattr(az, name)(idata)


def _of_site(name: str) -> Callable[[Any, Any], Any]:
    return lambda az, idata: getattr(az, name)(idata, **small(idata))


def _dist(az: Any, idata: Any) -> Any:
    if is_tree():
        return az.plot_dist(idata, **small(idata))
    return az.plot_dist(idata.posterior[small(idata)["var_names"][0]].values)


_NEW = {"plot_trace_dist", "plot_ppc_dist", "plot_ppc_pit", "plot_ppc_tstat", "psense_summary", "eti"}
_OLD = {"waic", "plot_ppc", "plot_bpv", "plot_posterior", "concat"}

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "summary": lambda az, idata: az.summary(idata, round_to="none"),
    "ess": _of_site("ess"),
    "rhat": _of_site("rhat"),
    "mcse": _of_site("mcse"),
    "hdi": _plain("hdi"),
    "eti": _plain("eti"),
    "bfmi": _plain("bfmi"),
    "loo": lambda az, idata: az.loo(idata, pointwise=True),
    "waic": _plain("waic"),
    "compare": _compare,
    "loo_pit": lambda az, idata: az.loo_pit(idata) if is_tree() else az.loo_pit(idata, y="obs"),
    "psense_summary": _plain("psense_summary"),
    "extract": lambda az, idata: az.extract(idata),
    "concat": lambda az, idata: az.concat(idata, idata, dim="chain"),
    "plot_trace": _of_site("plot_trace"),
    "plot_trace_dist": _of_site("plot_trace_dist"),
    "plot_forest": _of_site("plot_forest"),
    "plot_dist": _dist,
    "plot_posterior": _of_site("plot_posterior"),
    "plot_pair": _of_site("plot_pair"),
    "plot_autocorr": _of_site("plot_autocorr"),
    "plot_ess": _of_site("plot_ess"),
    "plot_mcse": _of_site("plot_mcse"),
    "plot_rank": _of_site("plot_rank"),
    "plot_parallel": _of_site("plot_parallel"),
    "plot_energy": _plain("plot_energy"),
    "plot_khat": _khat,
    "plot_compare": lambda az, idata: az.plot_compare(_compare(az, idata)),
    "plot_ppc": lambda az, idata: az.plot_ppc(idata, num_pp_samples=5),
    "plot_ppc_dist": lambda az, idata: az.plot_ppc_dist(idata, num_samples=5),
    "plot_bpv": _plain("plot_bpv"),
    "plot_ppc_pit": _plain("plot_ppc_pit"),
    "plot_ppc_tstat": _plain("plot_ppc_tstat"),
    "plot_loo_pit": lambda az, idata: az.plot_loo_pit(idata) if is_tree() else az.plot_loo_pit(idata, y="obs"),
}
"""What is tried, by the name in ArviZ."""

WHY = {
    "energy|sample_stats": "needs the energy of HMC",
    r"2 chains|two chains|more than one chain|at least 2": "needs two chains",
    r"All tail values are the same|compute ELPD": "needs draws that differ",
    r"log[ _]likelihood": "not defined",
}
"""What an error says, and what that means."""


def outcome(name: str, idata: Any) -> str:
    """Return 'yes', '–' where this ArviZ has no such function, or why it did not run."""
    az = import_arviz()
    if name in (_OLD if is_tree() else _NEW):
        assert not hasattr(az, name), name
        return "–"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            FUNCTIONS[name](az, idata)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        if "compute ELPD" in said and "log_likelihood" not in groups_of(idata):
            return "not defined"
        return next((why for pattern, why in WHY.items() if re.search(pattern, said)), f"no: {said}")
    finally:
        mpl.pyplot.close("all")
    return "yes"


def table() -> str:
    """Return the table of the installed ArviZ."""
    made = exports()
    assert all("log_prior" in groups_of(idata) for idata in made.values())
    lines = [f"| function | {' | '.join(made)} |", f"|---|{'---|' * len(made)}"]
    for name in FUNCTIONS:
        lines.append(f"| `{name}` | {' | '.join(outcome(name, idata) for idata in made.values())} |")
    return "\n".join(lines)


def heading() -> str:
    """Return the heading of the table of the installed ArviZ."""
    return "## ArviZ 1.x" if is_tree() else "## ArviZ 0.x"


def part(page: str) -> tuple[int, int]:
    """Return where the table of the installed ArviZ begins and ends in the page."""
    at = page.index("|", page.index(heading()))
    end = page.find("\n\n", at)
    return at, len(page.rstrip()) if end < 0 else end


def main() -> None:
    """Write the table."""
    mpl.use("Agg")
    page = PAGE.read_text()
    at, end = part(page)
    PAGE.write_text(page[:at] + table() + page[end:])


if __name__ == "__main__":
    main()
