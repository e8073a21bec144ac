"""A small share of the torture: a kill and a short soak; with the slow tests a little of every part."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("kills", "ranks", "crashes", "full disk", "read-only folder", "folder gone", "together", "soak")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and reads /proc")
@pytest.mark.parametrize(
    ("share", "parts"),
    [
        pytest.param("0.002", ("kills", "soak"), id="a little"),
        pytest.param("0.05", PARTS, id="more", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_lost(share: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    chosen = [word for part in parts for word in ("--only", part)]
    done = subprocess.run(
        [sys.executable, "-m", "torture", "--share", share, "--json", str(figures), *chosen],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    held = json.loads(figures.read_text())
    assert held["kills"]["stuck"] == held["kills"]["other bits"] == 0
    assert held["kills"]["runs"] > 0
    assert "ranks" not in parts or held["ranks"]["stuck"] == held["ranks"]["other bits"] == 0
    assert "together" not in parts or (held["together"]["refused"] > 0 and held["together"]["shared"] == 0)
    assert [name for name in parts if held[name]["words"]] == []
    assert held["soak"]["grown"] == 0
    assert held["soak"]["steps"] >= 500
