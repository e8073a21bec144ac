"""The README's Python works when it is pasted."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_python_blocks_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert (tmp_path / "runs" / "my-posterior" / "posterior.safetensors").is_file()
    table = names["table"]
    assert isinstance(table, dict)
    assert table["s_draws"]["accuracy"] > 0.8


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text())
    assert links
    for link in links:
        assert (README.parent / link).exists(), link
