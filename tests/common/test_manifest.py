"""Files that belong together: written all or none, wherever the writer is killed, and not believed if they changed."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyro_bnn.common import files, manifest
from pyro_bnn.common.manifest import Damaged, damaged, read_listed, seal, sealed, staged

OLD, NEW = {"a": b"1", "b": b"2", "c": b"3"}, {"a": b"4", "b": b"5"}


class Killed(BaseException):
    """The process is gone: nothing after it runs."""


def write(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    with staged(folder) as stage:
        for name, content in contents.items():
            (stage / name).write_bytes(content)


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Let the process be gone from the numbered call on that changes the disk, cleaning up included."""
    calls: list[str] = []

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) > number:
                raise Killed
            return call(*args, **kwargs)

        return instead

    for name in ("mkdir", "replace", "fsync", "unlink", "rmdir", "chmod"):
        monkeypatch.setattr(os, name, wrapped(name, getattr(os, name)))
    monkeypatch.setattr(Path, "write_bytes", wrapped("write", Path.write_bytes))
    monkeypatch.setattr(Path, "unlink", wrapped("unlink", Path.unlink))
    monkeypatch.setattr(shutil, "rmtree", wrapped("rmtree", shutil.rmtree))
    return calls


def test_a_writer_killed_anywhere_leaves_all_of_the_old_or_all_of_the_new(tmp_path: Path) -> None:
    whole, found = {**OLD, **NEW}, []
    for number in range(100):
        folder = tmp_path / str(number)
        write(folder, OLD)
        with pytest.MonkeyPatch.context() as patch:
            calls = killed_at(patch, number)
            with suppress(Killed):
                write(folder, NEW)
            finished = len(calls) <= number
        held = read_listed(folder, list(OLD))
        assert held in (OLD, whole)
        found.append(held == whole)
        if finished:
            break
        write(folder, {"d": b"6"})  # the next writer finishes it or starts over
        assert read_listed(folder, [*OLD, "d"]) == {**held, "d": b"6"}
        assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "c", "d", "manifest.json"]
    assert found == sorted(found)  # old up to some call, new from there on
    assert found.count(False) > 5
    assert found.count(True) > 5


def test_what_changed_is_named(tmp_path: Path) -> None:
    for spoil, message in (
        (lambda f: f.write_bytes(b"9"), "b is damaged: its SHA-256 is not the one"),
        (lambda f: f.write_bytes(b"22"), "b is damaged: it has 2 bytes, and had 1"),
        (lambda f: f.unlink(), "b is missing, and manifest.json lists it"),
    ):
        write(tmp_path, OLD)
        spoil(tmp_path / "b")
        assert damaged(tmp_path) == ["b"]
        assert read_listed(tmp_path, ["a", "c"]) == {"a": b"1", "c": b"3"}
        with pytest.raises(Damaged, match=f"{message}.*; ask again"):
            read_listed(tmp_path, ["a", "b"], "ask again")
    (tmp_path / "e").write_bytes(b"0")
    with pytest.raises(Damaged, match=r"e is not listed in manifest.json"):
        read_listed(tmp_path, ["e"])
    for text in ("", "[]", '{"format": 1}', '{"format": 1, "files": {"a": 3}}', "[" * 10_000):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(Damaged, match=r"manifest.json is damaged"):
            read_listed(tmp_path, ["a"])
    (tmp_path / "manifest.json").write_text('{"format": 9, "files": {}}')
    with pytest.raises(ValueError, match="format 9; this version reads format 1"):
        read_listed(tmp_path, ["a"])


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_bytes(b"1")
    write(tmp_path / "in", OLD)
    listed = tmp_path / "in" / "manifest.json"
    listed.write_text(listed.read_text().replace('"a"', '"../secret"'))
    with pytest.raises(Damaged, match="is no name of a file"):
        read_listed(tmp_path / "in", ["../secret"])


def test_a_folder_of_an_earlier_version_is_read_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with pytest.warns(FutureWarning, match="has no manifest.json.*read unchecked"):
        assert read_listed(tmp_path, ["a"]) == {"a": b"1"}
    seal(tmp_path)
    assert read_listed(tmp_path, ["a"]) == {"a": b"1"}


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "folder"
    precious.mkdir()
    (precious / "a").write_bytes(b"precious")
    write(folder, OLD)
    (folder / "a").unlink()
    (folder / "a").symlink_to(precious / "a")
    (folder / ".next").symlink_to(precious)
    write(folder, NEW)
    assert read_listed(folder, ["a"]) == {"a": b"4"}
    assert not (folder / "a").is_symlink()
    assert {path.name: path.read_bytes() for path in precious.iterdir()} == {"a": b"precious"}
    (folder / "new").symlink_to(precious)
    with sealed(folder / "new") as new:
        (new / "a").write_bytes(b"7")
    assert (precious / "a").read_bytes() == b"precious"


def test_a_full_disk_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    write(tmp_path, OLD)
    monkeypatch.setattr(manifest, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, NEW)
    assert read_listed(tmp_path, list(OLD)) == OLD
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "manifest.json"]


def test_leftovers_are_swept_and_nothing_else(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = tmp_path / "folder"
    (folder / ".next").mkdir(parents=True)
    for name in (".tmp-x-recipe.toml", ".recipe.toml.abc.tmp", ".lock", "notes.tmp", ".next/a"):
        (folder / name).write_text("")
    (folder / ".posterior.partial.nc").symlink_to(precious)
    files.sweep(folder)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "notes.tmp"]
    assert precious.read_text() == "precious"
