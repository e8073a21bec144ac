"""The rules of the house, read off the source: who imports whom, what is exported, what is never done."""

import ast
import importlib
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pyro_bnn
from pyro_bnn.common.moved import MOVED
from pyro_bnn.studies import Study

ROOT = Path(__file__).parent.parent
PACKAGE = Path(pyro_bnn.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "weights" not in path.parts)
LINKS = ("models", "guides", "inference")
STANDARD = set(sys.stdlib_module_names)

# room: (what else of the package it may import, what else at all besides the standard library; None: anything)
RULES: dict[str, tuple[set[str], set[str] | None]] = {
    "version": (set(), set()),
    "common": (set(), {"torch", "pyro"}),
    "common.adam": (set(), {"torch"}),
    "registry": (set(), set()),
    "recipe": ({"common"}, {"pydantic", "tomli", "tomli_w"}),
    "data": ({"common"}, {"torch", "numpy", "torchvision"}),
    "optim.torch_optim": (set(), {"torch"}),
    "optim.schedules": (set(), {"torch", "numpy", "matplotlib"}),
    "optim": ({"optim.torch_optim", "optim.schedules", "common.adam"}, {"torch", "pyro"}),
    "analysis.scores.metrics": ({"common"}, {"torch", "numpy", "torchmetrics"}),
    "models": ({"common", "registry"}, {"torch", "torchvision", "pyro"}),
    "guides": ({"common", "registry"}, {"torch", "pyro"}),
    "penalties": ({"common", "models", "registry"}, {"torch", "pyro", "matplotlib"}),
    "inference": ({"common", "common.adam", "data"}, {"torch", "pyro", "safetensors", "numpy", "arviz", "matplotlib"}),
    "tracking": ({"common", "inference"}, {"torch", "numpy"}),  # a tool is imported when its tracker is made
    "posterior": (
        {
            "common",
            "registry",
            "models",
            "guides",
            "inference",
            "analysis",  # in what scores and exports, when it is called
            "data",
            "version",
        },
        None,
    ),
    "analysis": ({"common", "inference", "analysis.scores.metrics", "posterior", "data", "version"}, None),
}
# where all rooms meet: they import everything, and only they and the lazy names of the package import them
TOP = {"__init__", "__main__", "assemble", "cards", "cli", "methods", "runs", "sklearn", "studies"}
ON_DEMAND = {"arviz", "torchmetrics", "matplotlib", "jinja2", "torchvision", "PIL", "xarray", "h5netcdf", "zarr", "ray"}


def module_of(path: Path) -> str:
    return ".".join(("pyro_bnn", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def room_of(module: str) -> str:
    """The room of a dotted module, the most particular one that has a rule."""
    parts = module.split(".")[1:] or ["__init__"]
    return next((room for n in (3, 2) if (room := ".".join(parts[:n])) in RULES), parts[0])


def imports(tree: ast.AST, *, only_at_import: bool = False) -> Iterator[tuple[str, ast.stmt]]:
    """Every imported module (`from package import module` as package.module), with its statement."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names if node.module == "pyro_bnn")
        skip_body = only_at_import and (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        )
        if not skip_body:
            stack.extend(ast.iter_child_nodes(node))


def at_import(path: Path) -> set[str]:
    """What a file of the package imports of it whenever it is imported itself, not inside a function or for types."""
    return {name for name, _ in imports(parse(path), only_at_import=True) if name.startswith("pyro_bnn.")}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def each_file(rule: Callable[[Path], None]) -> Callable[[], None]:
    """Ask a rule of every file, in one test that names all those that break it."""

    def test() -> None:
        broken = []
        for path in FILES:
            try:
                rule(path)
            except AssertionError as error:
                broken.append(f"{module_of(path)}: {error}")
        assert not broken, "\n".join(broken)

    test.__name__, test.__doc__ = rule.__name__, rule.__doc__
    return test


# -- who imports whom ------------------------------------------------------------------------------------------------


def test_every_room_has_a_rule() -> None:
    assert {room_of(module_of(path)) for path in FILES} <= set(RULES) | TOP


@each_file
def test_rooms_import_only_what_they_may(path: Path) -> None:
    room = room_of(module_of(path))
    if room in TOP:
        return
    inside, outside = RULES[room]
    for name, _ in imports(parse(path)):
        top = name.partition(".")[0]
        if top == "pyro_bnn":
            if name == "pyro_bnn":
                continue  # its parts are looked at one by one
            other = room_of(name)
            assert other == room or other in inside, f"{room} imports {name}"
        elif outside is not None:
            assert top in outside | STANDARD, f"{room} imports {name}"


def test_rooms_do_not_import_each_other() -> None:
    """At import, rooms lie one above the other: none is imported by what it imports."""
    below: dict[str, set[str]] = {}
    for path in FILES:
        room = module_of(path).split(".")[1] if path.parent != PACKAGE else path.stem
        below.setdefault(room, set()).update(name.split(".")[1] for name in at_import(path))
    left = {room: others - {room} for room, others in below.items()}
    while ground := {room for room, others in left.items() if not others & set(left)}:
        left = {room: others for room, others in left.items() if room not in ground}
    assert not left, (
        f"in a circle, or above it: { {room: sorted(others & set(left)) for room, others in left.items()} }"
    )


@pytest.mark.parametrize(
    ("module", "above"),
    [
        ("pyro_bnn.posterior", "analysis methods runs cli"),
        ("pyro_bnn.analysis.report", "methods runs cli"),
        ("pyro_bnn.inference", "models guides optim posterior analysis"),
        ("pyro_bnn.models", "guides inference posterior"),
        ("pyro_bnn.guides", "models inference posterior"),
    ],
)
def test_a_room_comes_without_those_above_it(module: str, above: str) -> None:
    script = f"import sys, {module}; print(*sorted(name for name in sys.modules if name.startswith('pyro_bnn.')))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert not {name.split(".")[1] for name in done.stdout.split()} & set(above.split())


@each_file
def test_heavy_libraries_are_imported_inside_functions(path: Path) -> None:
    found = {name.partition(".")[0] for name, _ in imports(parse(path), only_at_import=True)}
    assert not found & ON_DEMAND


@pytest.mark.parametrize("folder", ["pyro_bnn", "tests", "benchmarks", "examples", "notebooks"])
def test_imports_are_absolute_and_not_through_the_links(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        for name, node in imports(parse(path)):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
            assert name.partition(".")[0] not in LINKS, f"{path}: import through the link {name!r}"


def test_the_top_of_the_package_is_short() -> None:
    """What a person sees first: rooms, and at most eight files."""
    assert len([path for path in PACKAGE.iterdir() if path.suffix == ".py"]) <= 8


@pytest.mark.parametrize("old", MOVED)
def test_old_names_work_and_say_the_new_one(old: str) -> None:
    homes = MOVED[old]
    parent = old.rpartition(".")[0]
    if parent in MOVED:  # says its own new name when it is imported first
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(parent)
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved to {homes[0]}"):
        module = importlib.import_module(old)
    for home in homes:
        for name in importlib.import_module(home).__all__:
            assert getattr(module, name) is not None


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_that_is_imported_takes_no_public_name_away(old: str) -> None:
    parent, _, child = old.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = importlib.import_module(parent)
        sys.modules.pop(old, None)
        module = importlib.import_module(old)
    public = child in getattr(package, "__all__", ())
    assert (getattr(package, child) is module) == (not public)


def test_the_links_lead_to_the_package() -> None:
    for name in LINKS:
        assert (ROOT / name).is_symlink()
        assert (ROOT / name).resolve() == (PACKAGE / name).resolve()


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("pyro_bnn", "torch pyro numpy pydantic rich typer"),
        ("pyro_bnn.recipe", "torch pyro numpy"),
        ("pyro_bnn.cli", "torch pyro numpy arviz matplotlib"),
        ("pyro_bnn.data", "pyro torchvision"),
        ("pyro_bnn.runs.train", "arviz torchmetrics matplotlib torchvision typer jinja2"),
    ],
)
def test_importing_is_cheap(module: str, absent: str) -> None:
    script = (
        f"import sys; before = set(sys.modules); import {module};"
        f"print(*sorted(set('{absent}'.split()) & (set(sys.modules) - before)))"
    )
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert found.stdout.split() == []


# -- what is exported ------------------------------------------------------------------------------------------------


@each_file
def test_every_module_says_what_it_is_and_exports_what_exists(path: Path) -> None:
    tree = parse(path)
    assert ast.get_docstring(tree), "no module docstring"
    if path.name in ("__main__.py", "version.py"):
        return
    module = importlib.import_module(module_of(path))
    if isinstance(getattr(module, "STUDY", None), Study):  # a claim's file is a page; its one name is STUDY
        return
    names = module.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert hasattr(module, name), f"__all__ names {name!r}"
    defined = {
        node.name
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    }
    exported = {name for name in names if name in defined}
    for name in exported:
        assert getattr(module, name).__doc__, f"{name} has no docstring"


def test_the_package_s_names_are_all_there() -> None:
    assert dir(pyro_bnn) == sorted(pyro_bnn.__all__)
    for name in pyro_bnn.__all__:
        assert getattr(pyro_bnn, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pyro_bnn.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_names_users_type() -> None:
    homes = {
        "pyro_bnn": "train load Posterior Recipe Run",
        "pyro_bnn.models": "BNN LeNet5 MLP Perceptron priors likelihoods",
        "pyro_bnn.models.priors": "Normal Kaiming Xavier FanIn Laplace ScaleMixture PerLayer",
        "pyro_bnn.models.likelihoods": "Categorical Bernoulli Gaussian LearnedGaussian HeteroscedasticGaussian",
        "pyro_bnn.guides": "AutoMeanFieldNormal AutoLowRankNormal",
        "pyro_bnn.inference": (
            "fit kl scale_kl per_datum FlatMeanField_ELBO TracePathDerivative_ELBO TraceScoreFunction_ELBO "
            "local_reparameterization flipout gradient_variance HWA Callback Diverged"
        ),
        "pyro_bnn.inference.kl": "uniform geometric blundell annealed tempered balanced",
        "pyro_bnn.optim": "Adam AdaBayes AdaBayesFP AdaBound AMSBound YellowFin PerSite",
        "pyro_bnn.optim.torch_optim": "AdaBayes AdaBayesFP AdaBound AMSBound YellowFin",
        "pyro_bnn.posterior": "Posterior",
    }
    for home, names in homes.items():
        module = importlib.import_module(home)
        assert [name for name in names.split() if not hasattr(module, name)] == []


# -- what is never done ----------------------------------------------------------------------------------------------


@each_file
def test_nothing_is_pickled_or_evaluated(path: Path) -> None:
    tree = parse(path)
    writes_code = module_of(path) == "pyro_bnn.inference.graph.lowering"  # turns a recording into one function
    assert not {name.partition(".")[0] for name, _ in imports(tree)} & {"pickle", "dill", "cloudpickle", "joblib"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in ("eval", "breakpoint")
        assert called != "exec" or writes_code
        if called == "torch.load":
            assert {k.arg: ast.unparse(k.value) for k in node.keywords}.get("weights_only") == "True"
        if called in ("np.load", "numpy.load"):
            assert {k.arg: ast.unparse(k.value) for k in node.keywords}.get("allow_pickle", "False") == "False"


@each_file
def test_nothing_is_left_to_do_and_no_machine_is_named(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text)
    assert not re.search(r"(?<![\w.:/])/(home|root|Users|work|mnt)/", text)
    for node in ast.walk(parse(path)):
        assert not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name) and "NotImpl" in node.exc.id), (
            "a stub"
        )


@each_file
def test_the_library_does_not_print(path: Path) -> None:
    if room_of(module_of(path)) in ("cards", "cli", "runs", "__main__") or path.name.startswith("make_"):
        return
    for node in ast.walk(parse(path)):
        assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "print"), "print in the library"


@each_file
def test_guides_are_asked_by_their_contract(path: Path) -> None:
    if module_of(path) == "pyro_bnn.common.contract":
        return
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr"):
            asked = ast.unparse(node.args[0]).rpartition(".")[2]
            guessed = node.func.id == "hasattr" or len(node.args) == 3
            own = asked == "self" and "guides" in path.parts
            assert not (guessed and (own or asked in ("guide", "member"))), f"{path}: {ast.unparse(node)}"
