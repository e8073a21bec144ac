"""
Modules that have moved to another room: their old names work for one version, with a warning that names the new one.

An old name is a module of its own that hands every attribute on; nothing is imported before an attribute is asked for.
Python makes an imported module an attribute of its package; where the package has a function of that name by now
(`pyro_bnn.inference.lmc`), the function stays.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast, final

__all__ = ["MOVED", "announce"]

MOVED: dict[str, tuple[str, ...]] = {
    "pyro_bnn.training": ("pyro_bnn.runs.train", "pyro_bnn.runs.loading", "pyro_bnn.assemble", "pyro_bnn.methods"),
    "pyro_bnn.machine": ("pyro_bnn.common.machine",),
    "pyro_bnn.memory": ("pyro_bnn.common.memory",),
    "pyro_bnn.card_curve": ("pyro_bnn.cards.curve",),
    "pyro_bnn.card_text": ("pyro_bnn.cards.text",),
    "pyro_bnn.card_tuning": ("pyro_bnn.cards.tuning",),
    "pyro_bnn.compact": ("pyro_bnn.posterior.compact",),
    "pyro_bnn.pruning": ("pyro_bnn.penalties.pruning",),
    "pyro_bnn.lr_range": ("pyro_bnn.runs.lr_range",),
    "pyro_bnn.progress": ("pyro_bnn.runs.progress",),
    "pyro_bnn.posteriors": ("pyro_bnn.methods",),
    "pyro_bnn.posteriors.work": ("pyro_bnn.methods.base",),
    "pyro_bnn.inference.sgld": ("pyro_bnn.inference.samplers.sgld",),
    "pyro_bnn.inference.mcmc": ("pyro_bnn.inference.samplers.mcmc",),
    "pyro_bnn.inference.laplace": ("pyro_bnn.inference.samplers.laplace",),
    "pyro_bnn.inference.lmc": ("pyro_bnn.inference.samplers.lmc",),
    "pyro_bnn.inference.recording": ("pyro_bnn.inference.graph.recording",),
    "pyro_bnn.inference.lowering": ("pyro_bnn.inference.graph.lowering",),
    "pyro_bnn.analysis.file_predictions": ("pyro_bnn.runs.predict_file",),
    "pyro_bnn.analysis.report_figures": ("pyro_bnn.analysis.report.figures",),
    "pyro_bnn.analysis.report_sections": ("pyro_bnn.analysis.report.sections",),
    "pyro_bnn.analysis.svg": ("pyro_bnn.analysis.report.svg",),
    "pyro_bnn.analysis.outputs": ("pyro_bnn.analysis.report.outputs",),
    **{
        f"pyro_bnn.posteriors.{name}": (f"pyro_bnn.methods.{name}",)
        for name in ("averages", "ensembles", "hamiltonian", "langevin", "points")
    },
    **{
        f"pyro_bnn.analysis.{name}": (f"pyro_bnn.analysis.scores.{name}",)
        for name in (
            *("acquisition", "calibration", "elpd", "evaluation", "intervals", "metrics", "ood", "prior_check"),
            *("selective", "signal_to_noise", "uncertainty"),
        )
    },
    **{
        f"pyro_bnn.models.{name}": (f"pyro_bnn.models.networks.{name}",)
        for name in (
            *("cvnn", "densenet121", "lenet5", "mlp", "one_hidden_layer", "patch_transformer", "perceptron", "pooling"),
            *("resnet20", "resnet34", "vgg", "wide_resnet"),
        )
    },
}
"""Old module -> the modules that hold its names now."""


class _Package(ModuleType):
    """A package whose own names are not replaced by modules that have moved away."""

    def __setattr__(self, name: str, value: Any) -> None:
        moved = isinstance(value, ModuleType) and value.__name__ in MOVED
        if not moved or isinstance(vars(self).get(name, value), ModuleType):
            super().__setattr__(name, value)


@final
class _Finder:
    """Finds modules under their old names, and loads them; not of importlib.abc, whose import takes 8 ms."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of an old name, None for any other."""
        return ModuleSpec(name, cast(Any, self), is_package=f"{name}.work" in MOVED) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that hands on what the new ones hold."""
        old, homes = spec.name, MOVED[spec.name]
        warnings.warn(f"{old} has moved to {homes[0]}", DeprecationWarning, stacklevel=2)
        module = ModuleType(old, f"Moved to {', '.join(homes)}.")

        def get(attribute: str) -> Any:
            for home in homes:
                if not attribute.startswith("__") and hasattr(import_module(home), attribute):
                    return getattr(import_module(home), attribute)
            raise AttributeError(f"module {old!r}, which has moved to {homes[0]}, has no attribute {attribute!r}")

        vars(module)["__getattr__"] = get
        sys.modules[old.rpartition(".")[0]].__class__ = _Package
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: everything is handed on."""


def announce() -> None:
    """Let Python find modules under their old names, after all others."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(cast(Any, _Finder()))
