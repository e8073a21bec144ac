"""Files and plain data from nobody knows whom."""

import json
import os
import socket

import pytest

import pyro_bnn as pb
from pyro_bnn.common.errors import BadFile, Refused, TooLarge, border, is_own
from pyro_bnn.common.limits import check_limit, check_memory, limits_now, parse_limits
from pyro_bnn.common.reading import check_plain, open_file, parse_json, read_bytes, read_json, read_json_lines
from pyro_bnn.common.shown import in_markdown, visible


def test_what_is_no_ordinary_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
        for name, kind in {"pipe": "a named pipe", "socket": "a socket", ".": "a folder"}.items():
            with pytest.raises(BadFile, match=kind):
                open_file(tmp_path / name)
    for name, kind in {"/dev/zero": "a device", "": "a folder", ".": "a folder"}.items():
        with pytest.raises(BadFile, match=kind):
            open_file(name)
    with pytest.raises(BadFile, match="zero byte"):
        open_file("a\0b")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        open_file(tmp_path / "none")
    with pytest.raises(BadFile, match="cannot be opened"):
        open_file(tmp_path / ("x" * 5000))


def test_a_link_is_read_through_and_size_is_known_first(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bytes(tmp_path / "link") == b"x" * 100
    with pb.limits(json_bytes=99), pytest.raises(TooLarge, match=r"100 .*beyond the limit json_bytes=99.*--limit"):
        read_json(tmp_path / "file", dict)
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(TooLarge, match="beyond the limit lines_bytes"):
        read_json_lines(tmp_path / "hole")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "more than a double"),
        ('{"a": 1, "a": 2}', "'a' twice"),
        ('{"a": 99999999999999999999999}', "64 bits"),
        ("9" * 5000, "64 bits"),
        ("[" * 100_000, "not JSON"),
        ('{"a":' * 40 + "1" + "}" * 40, "levels"),
        ("[]", "holds a list, not a dict"),
        ("{", "not JSON"),
        (b"\xff", "UTF-8"),
    ],
)
def test_json_is_read_strictly(text, word):
    with pytest.raises(BadFile if word != "levels" else TooLarge, match=word):
        parse_json(text, "it", dict)


def test_json_that_was_written_is_read():
    held = {"a": [1, 2.5, -(2**63), 2**64 - 1, 1e308, "é", None, True], "b": {}}
    assert parse_json(json.dumps(held), "it", dict) == held


@pytest.mark.parametrize("value", [1j, b"x", object(), {1: 2}, {None: 1}, 2**63, {"a": {"b": [{3: 4}]}}])
def test_what_is_no_plain_data_is_refused(value):
    with pytest.raises(BadFile):
        check_plain(value, "it")


def test_limits_are_raised_by_name():
    with pytest.raises(TooLarge, match=r"epochs: 2,000,000 \(ages\) is beyond the limit epochs=1,000,000"):
        check_limit("epochs", 2_000_000, "epochs", so="ages")
    with pb.limits(epochs=3_000_000):
        check_limit("epochs", 2_000_000, "epochs")
    assert limits_now().epochs == 1_000_000
    assert parse_limits(["epochs=5", "draws=1_000"]) == {"epochs": 5, "draws": 1000}
    for wrong in ("epochs", "epochs=x", "epochs=-1", "epochs=٣"):
        with pytest.raises(ValueError, match="NAME=NUMBER"):
            parse_limits([wrong])
    with pytest.raises(ValueError, match="there is no limit 'epoch'"), pb.limits(epoch=1):
        pass
    with pytest.raises(TooLarge, match=r"it would take about 1 EB"):
        check_memory(10**18, "it")


def test_foreign_errors_end_at_the_border():
    def foreign():
        with border("it cannot be read", "write it again"):
            {}["x"]

    with pytest.raises(BadFile, match=r"it cannot be read \(KeyError: 'x'\): write it again") as caught:
        foreign()
    assert isinstance(caught.value, Refused)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(TooLarge), border("it", "x"):
        check_limit("epochs", 2**70, "epochs")
    assert not is_own(ValueError("never raised"))


def test_words_are_shown_and_not_obeyed():
    assert visible("\x1b[31m\u202egnp.\x07 é 🙂 \u200d") == r"\x1b[31m\u202egnp.\x07 é 🙂 " + "\u200d"
    assert visible("a\nb", keep="\n") == "a\nb"
    assert visible("\ud800") == r"\ud800"
    assert in_markdown("<img src=x> [a](b) | `c` & \n# d") == r"&lt;img src=x&gt; \[a\](b) \| \`c\` &amp; # d"
