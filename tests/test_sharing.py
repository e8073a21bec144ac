"""Posteriors that are handed on: archives, addresses of the web, repositories of the hub; whole, damaged, hostile."""

import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import time
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from servers import Files, files, hub

import pyro_bnn as pb
from pyro_bnn.cli import main
from pyro_bnn.common.errors import BadFile, TooLarge
from pyro_bnn.common.manifest import MANIFEST, Damaged, manifest_of
from pyro_bnn.posterior.archive import files_of, kept_folder, pack, unpack
from pyro_bnn.posterior.hub import parse_address
from pyro_bnn.posterior.web import _Redirect
from pyro_bnn.runs.loading import posterior_folder
from pyro_bnn.runs.sharing import export

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub's own upload

NAME = "lenet5-mnist-mini"
NOISE = torch.linspace(-1, 1, 28 * 28).reshape(1, 1, 28, 28)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def shipped() -> dict[str, bytes]:
    return files_of(posterior_folder(NAME))


@pytest.fixture(scope="module")
def archive(shipped: dict[str, bytes]) -> bytes:
    return pack(shipped)


def same_predictions(posterior: pb.Posterior) -> bool:
    expected = pb.load(NAME).predict(NOISE, num_samples=3, seed=0)
    return torch.equal(posterior.predict(NOISE, num_samples=3, seed=0), expected)


# -- archives --------------------------------------------------------------------------------------------------------


def test_an_archive_predicts_the_same_and_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    posterior = pb.load(NAME)
    first, second = posterior.save(tmp_path / "a.zip"), posterior.save(tmp_path / "b.zip")
    assert first == tmp_path / "a.zip"
    assert first.read_bytes() == second.read_bytes()
    assert same_predictions(pb.load(first))
    assert pb.load(str(first)).save(tmp_path / "c.zip").read_bytes() == first.read_bytes()


def test_an_export_takes_the_card_along_and_names_its_checksum(tmp_path: Path, archive: bytes) -> None:
    sha256 = export(NAME, tmp_path / "x.zip")
    assert (tmp_path / "x.zip").read_bytes() == archive
    assert (tmp_path / "x.zip.sha256").read_text() == f"{sha256}  x.zip\n"
    assert sha256 == hashlib.sha256(archive).hexdigest()
    assert {"card.md", "card.json"} < set(unpack(archive, "it"))
    os.utime(tmp_path / "x.zip", (0, 0))
    assert export(str(tmp_path / "x.zip"), tmp_path / "y.zip") == sha256
    with pytest.raises(ValueError, match=r"ends in \.zip"):
        export(NAME, tmp_path / "x.tar")


def test_a_run_is_exported_without_its_states(tmp_path: Path) -> None:
    pb.train("perceptron-and", out=tmp_path / "run", epochs=2, progress=False, report=False)
    export(tmp_path / "run", tmp_path / "run.zip")
    held = unpack((tmp_path / "run.zip").read_bytes(), "it")
    assert set(held) == {
        "posterior.json",
        "posterior.safetensors",
        "recipe.toml",
        "results.json",
        "metrics.jsonl",
        MANIFEST,
    }
    assert pb.evaluate(str(tmp_path / "run.zip"))["test"] == pb.evaluate(tmp_path / "run")["test"]


def zipped(members: list[tuple[str, bytes]], *, how: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", how) as archive:
        warnings.filterwarnings("ignore", message="Duplicate name")
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def sealed(contents: dict[str, bytes], **others: bytes) -> list[tuple[str, bytes]]:
    held = {**contents, **others}
    return [*held.items(), (MANIFEST, manifest_of(held))]


def test_hostile_archives_are_refused(tmp_path: Path, shipped: dict[str, bytes]) -> None:
    two = {name: shipped[name] for name in ("posterior.json", "posterior.safetensors")}
    outside = [
        ("../out.json", b"{}"),
        ("/etc/out", b""),
        ("a/posterior.json", b"{}"),
        ("..\\out", b""),
        ("run.py", b""),
    ]
    cases = {
        **{name: (zipped([*sealed(two), (name, held)]), "no file of a posterior") for name, held in outside},
        "twice": (zipped([*sealed(two), ("posterior.json", b"{}")]), "twice"),
        "packed": (zipped(sealed(two), how=zipfile.ZIP_BZIP2), "otherwise than by deflate"),
        "none": (b"no archive", "cannot be read as an archive"),
        "no manifest": (zipped(list(two.items())), "has no manifest"),
        "another": (zipped([*sealed(two)[:-1], (MANIFEST, manifest_of({**two, "posterior.json": b"{}"}))]), "damaged"),
        "unlisted": (zipped([*sealed(two), ("card.md", b"# x")]), "are not in it"),
        "no tensors": (zipped(sealed({"posterior.json": b"{}"})), "holds no posterior"),
    }
    for case, (content, said) in cases.items():
        with pytest.raises(BadFile, match=said):
            unpack(content, case)
        (tmp_path / "x.zip").write_bytes(content)
        with pytest.raises(BadFile, match=said):
            pb.load(str(tmp_path / "x.zip"))
    assert not kept_folder("").exists() or not list(kept_folder("").iterdir())
    assert {path.name for path in tmp_path.iterdir()} <= {"x.zip", "cache"}


def test_an_archive_inflates_to_no_more_than_it_declares_and_may(shipped: dict[str, bytes]) -> None:
    bomb = zipped(sealed(shipped, **{"card.md": bytes(50_000_000)}), how=zipfile.ZIP_DEFLATED)
    with pb.limits(inflated_bytes=10_000_000), pytest.raises(TooLarge, match="inflated_bytes"):
        unpack(bomb, "bomb")
    where = bomb.rindex(b"card.md") - 46  # in the directory at the end
    field = struct.unpack_from("<L", bomb, where + 24)[0]
    assert field == 50_000_000
    lying = bytearray(bomb)
    struct.pack_into("<L", lying, where + 24, 1000)
    with pytest.raises(BadFile, match="cannot be read"):
        unpack(bytes(lying), "bomb")


def test_every_changed_byte_of_an_archive_is_noticed(archive: bytes, shipped: dict[str, bytes]) -> None:
    held = unpack(archive, "it")
    for at in range(0, len(archive), len(archive) // 150):
        changed = bytearray(archive)
        changed[at] ^= 0x10
        try:
            assert unpack(bytes(changed), "it") == held  # such as a time, which nothing depends on
        except (BadFile, TooLarge):
            continue
    for cut in range(0, len(archive), len(archive) // 40):
        with pytest.raises(BadFile):
            unpack(archive[:cut], "it")


# -- the web ---------------------------------------------------------------------------------------------------------


def test_an_address_is_loaded_by_its_checksum_and_fetched_once(archive: bytes, empty_cache: Path) -> None:
    sha256 = hashlib.sha256(archive).hexdigest()
    with files({"/x.zip": archive}) as server:
        address = f"{server.url}/x.zip#sha256={sha256}"
        assert same_predictions(pb.load(address))
        assert same_predictions(pb.load(address))
        assert server.asked == ["GET /x.zip"]
        assert [path.name for path in (empty_cache / "pyro_bnn" / "posteriors").iterdir()] == [sha256]
        (kept_folder(sha256) / "posterior.json").write_text("{}")  # damaged in the cache: fetched again
        assert same_predictions(pb.load(address))
        assert len(server.asked) == 2
    assert same_predictions(pb.load(address))


def test_a_sidecar_gives_the_checksum_and_none_is_refused_unless_asked(archive: bytes) -> None:
    line = f"{hashlib.sha256(archive).hexdigest()}  x.zip\n".encode()
    with files({"/x.zip": archive, "/x.zip.sha256": line, "/y.zip": archive}) as server:
        assert same_predictions(pb.load(f"{server.url}/x.zip"))
        with pytest.raises(ValueError, match=r"has no checksum, and there is no .*y\.zip\.sha256: end the address"):
            pb.load(f"{server.url}/y.zip")
        assert same_predictions(pb.load(f"{server.url}/y.zip#unchecked"))
        server.pages["/x.zip.sha256"] = b"no checksum"
        with pytest.raises(BadFile, match="is no SHA-256"):
            pb.load(f"{server.url}/x.zip")
        server.pages["/x.zip.sha256"] = bytes(10_000)
        with pytest.raises(BadFile, match="more than 4,096 bytes"):
            pb.load(f"{server.url}/x.zip")
    for wrong in ("https://host/x.zip#sha256=12", "https://host/x.zip#md5=" + 64 * "0"):
        with pytest.raises(ValueError, match="is no checksum"):
            pb.load(wrong)
    with pytest.raises(ValueError, match="comes over http without a checksum"):
        pb.load("http://example.org/x.zip")
    with pytest.raises(ValueError, match="names no host"):
        pb.load("https:///x.zip#unchecked")


def cut(content: bytes) -> Callable[[Files], None]:
    """Declare all and send half."""

    def page(handler: Files) -> None:
        handler.answer(200, content[: len(content) // 2], Content_Length=str(len(content)))
        handler.hang_up()

    return page


def endless(piece: bytes) -> Callable[[Files], None]:
    """Declare nothing and send on until nobody listens."""

    def page(handler: Files) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        try:
            while True:
                handler.wfile.write(piece)
        except OSError:
            return

    return page


def test_cut_damaged_and_oversized_transfers_are_refused_and_leave_nothing(archive: bytes, empty_cache: Path) -> None:
    sha256, wrong = hashlib.sha256(archive).hexdigest(), bytearray(archive)
    wrong[len(wrong) // 2] ^= 1
    pages: dict[str, Any] = {
        "/x.zip": cut(archive),
        "/damaged.zip": bytes(wrong),
        "/declared.zip": lambda handler: handler.answer(200, b"x", Content_Length=str(2**40)),
        "/endless.zip": endless(bytes(100_000)),
        "/packed.zip": lambda handler: handler.answer(200, archive, Content_Encoding="gzip"),
        "/length.zip": lambda handler: handler.answer(200, b"", Content_Length="many"),
        "/error.zip": lambda handler: handler.answer(500),
    }
    said = {
        "/x.zip": f"ended after {len(archive) // 2:,} of {len(archive):,} bytes",
        "/damaged.zip": "was expected: it is damaged, or another file",
        "/declared.zip": "1,099,511,627,776 .* is beyond the limit download_bytes",
        "/endless.zip": "is beyond the limit download_bytes=5,000,000",
        "/packed.zip": "comes packed as 'gzip'",
        "/length.zip": "declares the length 'many'",
        "/error.zip": "answers with HTTP 500",
    }
    with files(pages) as server, pb.limits(download_bytes=5_000_000):
        for page, words in said.items():
            with pytest.raises(BadFile if "limit" not in words else TooLarge, match=words):
                pb.load(f"{server.url}{page}#sha256={sha256}")
        with pytest.raises(FileNotFoundError, match="there is nothing at"):
            pb.load(f"{server.url}/nothing.zip#sha256={sha256}")
        assert not (empty_cache / "pyro_bnn").exists()
        server.pages["/x.zip"] = archive
        assert same_predictions(pb.load(f"{server.url}/x.zip#sha256={sha256}"))
    with pytest.raises(BadFile, match="could not be fetched"):  # nobody is there any more
        pb.load(f"{server.url}/y.zip#sha256={'0' * 64}")


def test_sending_on_stays_within_the_web(archive: bytes, tmp_path: Path) -> None:
    sha256 = hashlib.sha256(archive).hexdigest()
    (tmp_path / "x.zip").write_bytes(archive)

    def to(place: str) -> Callable[[Files], None]:
        return lambda handler: handler.answer(302, Location=place)

    pages = {
        "/x.zip": archive,
        "/on.zip": to("/x.zip"),
        "/file.zip": to(f"file://{tmp_path}/x.zip"),
        "/ftp.zip": to("ftp://127.0.0.1/x.zip"),
        "/data.zip": to("data:application/zip;base64,AAAA"),
        "/round.zip": to("/round.zip"),
    }
    with files(pages) as server:
        assert same_predictions(pb.load(f"{server.url}/on.zip#sha256={sha256}"))
        for page in ("/file.zip", "/ftp.zip", "/data.zip"):
            with pytest.raises(ValueError, match="only http and https are"):
                pb.load(f"{server.url}{page}#unchecked")
        with pytest.raises(ValueError, match="infinite loop"):
            pb.load(f"{server.url}/round.zip#unchecked")
    secure = urllib.request.Request("https://host/x.zip")
    with pytest.raises(ValueError, match="https stays https"):
        _Redirect().redirect_request(secure, None, 302, "", {}, "http://host/x.zip")


# -- the hub ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A hub on this machine, and huggingface_hub pointed at it with a cache of its own."""
    with hub(token="of-mine") as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "of-mine")
        yield server


def test_push_and_load(repositories: Any) -> None:
    posterior = pb.load(NAME)
    address = posterior.push(
        "hf://user/digits", scores={"accuracy": 0.977, "pred_nll": 0.065}, license="mit", private=True
    )
    ident, held = repositories.repos["user/digits"][0]
    assert address == f"hf://user/digits@{ident}"
    assert repositories.made[0]["visibility"] == "private"
    assert set(held) == {"posterior.json", "posterior.safetensors", MANIFEST, "README.md"}
    for place in ("hf://user/digits", address, "hf://user/digits@main"):
        assert same_predictions(pb.load(place))
    card = huggingface_hub.ModelCard(held["README.md"].decode())
    assert "_name: pyro-bnn\n" in held["README.md"].decode()
    assert card.data.license == "mit"
    assert card.data.pipeline_tag == "image-classification"
    assert {(r.metric_type, r.metric_value, r.dataset_name) for r in card.data.eval_results} == {
        ("accuracy", 0.977, "mnist-mini"),
        ("nll", 0.065, "mnist-mini"),
    }
    assert 'pb.load("hf://user/digits")' in card.text


def test_a_run_is_pushed_with_its_card_and_taken_from_the_cache_without_a_network(
    repositories: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", NAME, "hf://user/card"]) == 0
    ident, held = repositories.repos["user/card"][0]
    assert f"pushed: hf://user/card@{ident}" in capsys.readouterr().out
    assert "# lenet5-mnist-mini (eta = 0.1)" in held["README.md"].decode()
    assert "card.md" not in held
    asked = len(repositories.asked)
    assert same_predictions(pb.load("hf://user/card"))
    fetched = len(repositories.asked) - asked
    assert same_predictions(pb.load("hf://user/card"))
    assert 0 < len(repositories.asked) - asked - fetched <= 2  # which commit it is now; nothing else
    repositories.shutdown()
    assert same_predictions(pb.load(f"hf://user/card@{ident}"))


def test_a_revision_names_one_commit(repositories: Any) -> None:
    first = pb.load(NAME).push("hf://user/two")
    second = pb.load("mlp-mnist").push("hf://user/two")
    assert first != second
    repositories.tags["user/two"] = {"v1": first.partition("@")[2]}
    assert pb.load("hf://user/two@v1").info["data"] == "mnist-mini"
    assert pb.load(first).info["data"] == "mnist-mini"
    assert pb.load("hf://user/two").info["data"] == "mnist"
    with pytest.raises(FileNotFoundError, match="not there, or private"):
        pb.load("hf://user/two@v2")
    with pytest.raises(FileNotFoundError, match="not there, or private"):
        pb.load("hf://user/three")


def test_what_is_no_address_or_no_token_is_refused(repositories: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("hf://user", "hf://user/name@", "hf://a/b/c", "hf://user/na me", "hf://user/..@x y"):
        with pytest.raises(ValueError, match=r"no address of the hub|could not be fetched"):
            pb.load(wrong)
    assert parse_address("hf://user/name@refs/pr/1").revision == "refs/pr/1"
    monkeypatch.setenv("HF_TOKEN", "of-another")
    with pytest.raises(ValueError, match="could not be pushed to"):
        pb.load(NAME).push("hf://user/digits")


def test_an_interrupted_transfer_goes_on_and_a_damaged_file_is_fetched_again(
    repositories: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pb.load(NAME).push("hf://user/digits")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
    ranges: list[str] = []

    def cut_once(handler: Any, file: str, content: bytes) -> bool:
        if file != "posterior.safetensors":
            return False
        ranges.append(handler.headers.get("Range", ""))
        if len(ranges) > 1:
            return False
        handler.answer(200, content[:100_000], Content_Length=str(len(content)))
        handler.hang_up()
        return True

    repositories.mishap = cut_once
    assert same_predictions(pb.load("hf://user/digits"))
    assert ranges == ["", "bytes=100000-"]

    repositories.mishap = None
    blob = (posterior_folder("hf://user/digits") / "posterior.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    assert same_predictions(pb.load("hf://user/digits"))  # the cache was damaged

    def flip(handler: Any, file: str, content: bytes) -> bool:
        if file == "posterior.safetensors":
            handler.answer(200, content[:-1] + b"x", X_Repo_Commit=repositories.repos["user/digits"][0][0])
        return file == "posterior.safetensors"

    repositories.mishap = flip
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    with pytest.raises(Damaged, match="its SHA-256 is not the one"):
        pb.load("hf://user/digits")


def test_a_repository_is_no_larger_than_it_declares_and_may_be(repositories: Any) -> None:
    pb.load(NAME).push("hf://user/digits")
    held = repositories.repos["user/digits"][0][1]
    with pb.limits(download_bytes=100_000), pytest.raises(TooLarge, match="download_bytes"):
        pb.load("hf://user/digits")
    assert not [line for line in repositories.asked if line.startswith("GET") and "safetensors" in line]
    listed = json.loads(held[MANIFEST])
    listed["files"]["posterior.safetensors"]["bytes"] = 1000
    repositories.repos["user/digits"] = [("b" * 40, {**held, MANIFEST: json.dumps(listed).encode()})]
    with pytest.raises(BadFile, match="more than the 1,000 bytes that were declared"):
        pb.load("hf://user/digits")
    for wrong in (b"{", b'{"format": 1, "files": {}}', b'{"format": 1, "files": {"posterior.json": {"bytes": -1}}}'):
        ident = hashlib.sha1(wrong).hexdigest()
        repositories.repos["user/digits"] = [(ident, {**held, MANIFEST: wrong})]
        with pytest.raises(BadFile, match=r"damaged|holds no posterior"):
            pb.load("hf://user/digits")


def test_only_what_belongs_to_a_posterior_is_fetched(repositories: Any, shipped: dict[str, bytes]) -> None:
    pb.load(NAME).push("hf://user/digits")
    held = repositories.repos["user/digits"][0][1]
    more = {"pytorch_model.bin": b"pickle", "posterior.pkl": b"pickle", "setup.py": b"raise"}
    files = {**{n: c for n, c in held.items() if n not in (MANIFEST, "README.md")}, **more}
    repositories.repos["user/digits"] = [("a" * 40, {**files, MANIFEST: manifest_of(files)})]
    assert same_predictions(pb.load("hf://user/digits"))
    assert not [line for line in repositories.asked if any(name in line for name in more)]


# -- the command -----------------------------------------------------------------------------------------------------


def test_addresses_stand_wherever_a_run_is_named(
    archive: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    digits = pb.load_data("mnist-mini", standardise=False).test
    np.save(tmp_path / "rows.npy", digits.x[:3].numpy())
    sha256 = hashlib.sha256(archive).hexdigest()
    with files({"/x.zip": archive}) as server:
        address = f"{server.url}/x.zip#sha256={sha256}"
        assert main(["predict", address, "rows.npy", "--num-samples", "5", "--json"]) == 0
        assert [row["answer"] for row in json.loads(capsys.readouterr().out)] == [str(int(y)) for y in digits.y[:3]]
        assert main(["evaluate", address, "--num-samples", "2", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["test"]["s_draws"]["accuracy"] > 0.95
        assert main(["report", address]) == 2
        assert "say where to with --out" in capsys.readouterr().err
        assert main(["export", address, "--out", "again.zip"]) == 0
        assert (tmp_path / "again.zip").read_bytes() == archive
        assert f"#sha256={sha256}" in capsys.readouterr().out
        assert main(["evaluate", f"{server.url}/x.zip", "--num-samples", "2"]) == 2
        assert "has no checksum" in capsys.readouterr().err


def test_a_process_of_its_own_reads_the_settings_of_the_hub(tmp_path: Path) -> None:
    script = (
        f"import pyro_bnn as pb; pb.load({NAME!r}).push('hf://user/digits'); "
        "print(pb.load('hf://user/digits').info['data'])"
    )
    with hub(token="of-mine") as server:
        settings = {
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(tmp_path),
            "HF_TOKEN": "of-mine",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, **settings}, capture_output=True, text=True, timeout=120
        )
    assert done.stdout == "mnist-mini\n", done.stderr
