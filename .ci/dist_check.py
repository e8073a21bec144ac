"""Build sdist -> wheel, install the wheel in an empty folder, and import the package from there."""

import subprocess
import sys
import tempfile
from pathlib import Path

CHECK = """
import pathlib, sys
import pyro_bnn
import pyro_bnn.models, pyro_bnn.guides, pyro_bnn.inference
from pyro_bnn.recipe import recipe_names
from pyro_bnn.data import load_data
home = pathlib.Path(pyro_bnn.__file__).resolve()
assert home.is_relative_to(pathlib.Path(sys.argv[1]).resolve()), home
assert (home.parent / "py.typed").exists()
assert "lenet5-mnist-mini" in recipe_names()
assert len(load_data("mnist-mini").train.x) == 5000
assert pyro_bnn.load("lenet5-mnist-mini").predict(load_data("mnist-mini").test.x[:5], num_samples=2).shape == (5, 10)
print("wheel ok:", pyro_bnn.__version__)
"""


def main() -> None:
    """Raise if the distribution lacks anything that the checkout has."""
    with tempfile.TemporaryDirectory() as tmp:
        dist, site = Path(tmp, "dist"), Path(tmp, "site")
        subprocess.run([sys.executable, "-m", "build", "--outdir", dist, "."], check=True, stdout=subprocess.DEVNULL)
        (wheel,) = dist.glob("*.whl")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel]
        subprocess.run(pip, check=True)
        subprocess.run([sys.executable, "-c", CHECK, site], check=True, cwd=tmp, env={"PYTHONPATH": str(site)})


if __name__ == "__main__":
    main()
