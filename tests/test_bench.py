"""`python -m benchmarks`: what a broken run has measured is not measured again, and results.json is whole or former."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

bench = pytest.importorskip("benchmarks.__main__")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Measure nothing, say what would have been; the row "wide-400" breaks off the first time."""
    asked: list[str] = []

    def training(name: str, *args: Any) -> dict[str, Any]:
        asked.append(name)
        if asked.count("wide-400") == 1 and name == "wide-400":
            raise KeyboardInterrupt
        return {"title": name, "contenders": {}, "failed": {}, "rounds": 1}

    monkeypatch.setattr(bench, "training", training)
    monkeypatch.setattr(bench, "KINDS", ("lenet5", "wide-400", "encoder"))
    monkeypatch.setattr(bench, "draw", lambda *args: None)
    monkeypatch.setattr(bench, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(bench.torch, "set_num_threads", lambda count: None)
    return asked


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--out", str(out), *options])
    bench.main()


def test_a_broken_run_goes_on_where_it_was(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "results.json").write_text("former")
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, tmp_path, "--resume")
    assert (tmp_path / "results.json").read_text() == "former"
    run(monkeypatch, tmp_path, "--resume")
    assert measured == ["lenet5", "wide-400", "wide-400", "encoder"]
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["work"]) == ["lenet5", "wide-400", "encoder"]
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_what_other_versions_measured_is_measured_again(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, tmp_path)
    begun = tmp_path / "unfinished.json"
    results = json.loads(begun.read_text())
    results["machine"]["versions"]["torch"] = "1.0"
    begun.write_text(json.dumps(results))
    run(monkeypatch, tmp_path, "--resume")
    assert measured == ["lenet5", "wide-400", "lenet5", "wide-400", "encoder"]
