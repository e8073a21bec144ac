"""Archives and arrays from nobody knows whom: what they promise, and what they hold."""

import io
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

import pyro_bnn as pb
from pyro_bnn.common.errors import BadFile, TooLarge
from pyro_bnn.data import load_data
from pyro_bnn.data.npz import Archive, read_npy
from pyro_bnn.runs.predict_file import read_inputs


def npy(shape, kind="<f4", body=b"", fortran=False):
    text = f"{{'descr': '{kind}', 'fortran_order': {fortran}, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + body


def archive(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def bomb(path, name, gigabytes):
    """Zeros that take a thousandth of their size."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open(name, "w", force_zip64=True) as member:
        member.write(npy((int(gigabytes * 2**20), 2**10), "|u1"))
        for _ in range(int(gigabytes * 2**10)):
            member.write(bytes(2**20))
    return path


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "|u1", "<i8", "|b1", "<U3"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back(tmp_path, dtype, order):
    values = np.asarray(np.arange(24).reshape(2, 3, 4) % 2, order=order).astype(dtype)
    np.save(tmp_path / "a.npy", values)
    np.savez_compressed(tmp_path / "a.npz", a=values, empty=values[:0], scalar=values[0, 0, 0])
    np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), values)
    with Archive(tmp_path / "a.npz") as held:
        assert held.names == ["a", "empty", "scalar"]
        np.testing.assert_array_equal(held.read("a"), values)
        assert held.read("a").dtype == values.dtype
        assert held.read("empty").shape == (0, 3, 4)
        assert held.read("scalar") == values[0, 0, 0]


def test_a_bomb_is_refused_before_it_is_inflated(tmp_path, monkeypatch):
    path = bomb(tmp_path / "bomb.npz", "x.npy", 0.03)
    assert path.stat().st_size < 2**16
    monkeypatch.setattr("pyro_bnn.data.npz._filled", None)  # what inflates is never called
    with pb.limits(inflated_bytes=2**24):
        with pytest.raises(TooLarge, match=r"beyond the limit inflated_bytes=.*--limit inflated_bytes="):
            read_inputs(path, (2**10,))
        archive(path, {f"{name}.npy": bytes(2**22) for name in ("x_train", "y_train", "x_test", "y_test")})
        with pytest.raises(ValueError, match="cannot be read as"):
            load_data(path)
    archive(path, {"x.npy": npy((2**12, 2**10), "|u1", bytes(2**22))})
    with pb.limits(memory_bytes=10**6), pytest.raises(TooLarge, match="memory_bytes"), Archive(path) as held:
        held.read("x")


def test_what_is_not_packed_is_no_bomb(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((2**11, 2**10), np.uint8))
    with pb.limits(inflated_bytes=0):
        assert read_inputs(tmp_path / "a.npz", (2**10,))[1].shape == (2**11, 2**10)


def test_a_member_that_is_not_asked_for_is_not_inflated(tmp_path):
    huge = npy((2**40,), "<f8")
    path = archive(tmp_path / "a.npz", {"x.npy": npy((2, 3), body=bytes(24)), "other.npy": huge})
    assert read_inputs(path, (3,))[1].shape == (2, 3)
    with pytest.raises(ValueError, match="unknown key 'other'"):
        load_data(
            archive(tmp_path / "b.npz", {f"{k}.npy": huge for k in ("x_train", "y_train", "x_test", "y_test", "other")})
        )


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (npy((2**42,)), "damaged"),
        (npy((3,), body=bytes(11)), "damaged"),
        (npy((3,), body=bytes(13)), "damaged"),
        (npy((3,), "|O", body=bytes(24)), "holds object"),
        (npy((10**12,), "<U0"), "holds <U0"),
        (npy((0, 2**61)), "without an entry"),
        (npy((-1,)), "which no array has"),
        (npy("(" * 300), "cannot be read"),
        (b"\x93NUMPY\x09\x00", "version"),
        (b"", "cannot be read"),
    ],
)
def test_promises_that_are_not_kept_are_refused(tmp_path, content, word):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(BadFile, match=word):
        read_npy(tmp_path / "a.npy")
    archive(tmp_path / "a.npz", {"x.npy": content})
    with pytest.raises(BadFile), Archive(tmp_path / "a.npz") as held:
        held.read("x")


def test_names_that_leave_their_folder_and_names_given_twice_are_refused(tmp_path):
    good = npy((1,), body=bytes(4))
    for name in ("../evil.npy", "/etc/x.npy", "a\\b.npy", "C:x.npy", "..npy", ".npy"):
        with pytest.raises(BadFile, match="no name of an array"):
            Archive(archive(tmp_path / "a.npz", {name: good}))
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as file:
        file.writestr("x.npy", good)
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("x.npy", good)
    with pytest.raises(BadFile, match="twice"):
        Archive(tmp_path / "b.npz")
    with pytest.raises(BadFile, match="otherwise than by deflate"):
        Archive(archive(tmp_path / "c.npz", {"x.npy": good}, zipfile.ZIP_LZMA))
    with pb.limits(archive_members=2), pytest.raises(TooLarge, match="arrays in"):
        Archive(archive(tmp_path / "d.npz", {f"{i}.npy": good for i in range(3)}))


def test_two_classes_of_one_name_are_refused(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 3
    names = np.array(["cat", "dog", "cat"])
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y, class_names=names)
    with pytest.raises(ValueError, match="two classes the name 'cat'"):
        load_data(tmp_path / "a.npz")


# -- images ------------------------------------------------------------------------------------------------------------


def picture(path, array, kind="PNG", **options):
    from PIL import Image

    Image.fromarray(array).save(path, kind, **options)
    return path


def test_16_bits_of_grey_are_not_cut_off(tmp_path):
    ramp = np.linspace(0, 65535, 28 * 28).round().astype(np.uint16).reshape(28, 28)
    grey = read_inputs(picture(tmp_path / "a.png", ramp), (1, 28, 28))[1]
    np.testing.assert_allclose(grey[0, 0].numpy(), ramp / 65535, atol=1e-7)
    colour = read_inputs(tmp_path / "a.png", (3, 28, 28))[1]
    assert all(np.array_equal(colour[0, c], grey[0, 0]) for c in range(3))
    eight = read_inputs(picture(tmp_path / "b.png", (ramp // 257).astype(np.uint8)), (1, 28, 28))[1]
    np.testing.assert_allclose(eight.numpy(), grey.numpy(), atol=1 / 255)


@pytest.mark.parametrize("kind", ["EPS", "GIF", "BMP", "TIFF"])
def test_only_png_and_jpeg_are_opened_whatever_the_name_says(tmp_path, kind):
    path = picture(tmp_path / "a.png", np.zeros((28, 28), np.uint8), kind)
    with pytest.raises(BadFile, match="cannot be read as an image"):
        read_inputs(path, (1, 28, 28))


def test_an_image_of_another_size_is_refused_before_it_is_inflated(tmp_path):
    path = picture(tmp_path / "a.png", np.zeros((9000, 9000), np.uint8))
    started = time.process_time()
    with pytest.raises(ValueError, match="9000 x 9000 pixels"):
        read_inputs(path, (1, 28, 28))
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize("kind", [b"tEXt", b"zTXt", b"iCCP", b"IDAT", b"PLTE", b"eXIf", b"abCd"])
def test_a_chunk_that_promises_gigabytes_takes_no_memory(tmp_path, kind):
    """A chunk of a PNG begins with its length, and whoever reads so many bytes takes memory for them first."""
    whole = picture(tmp_path / "a.png", np.zeros((28, 28), np.uint8)).read_bytes()
    start = len(b"\x89PNG\r\n\x1a\n") + 4 + 4 + 13 + 4  # signature, and IHDR: length, name, content, checksum
    promise = (2**31 - 1).to_bytes(4, "big") + kind + b"much"
    (tmp_path / "a.png").write_bytes(whole[:start] + promise + whole[start:])
    read_inputs(picture(tmp_path / "b.png", np.zeros((28, 28), np.uint8)), (1, 28, 28))  # imports what it needs
    tracemalloc.start()
    try:
        with pytest.raises(BadFile, match="cannot be read as an image"):
            read_inputs(tmp_path / "a.png", (1, 28, 28))
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["", "."])
def test_no_name_is_no_file(name):
    with pytest.raises(ValueError, match="is no file"):
        read_inputs(name, (1, 28, 28))


def test_an_archive_of_rubbish_is_refused(tmp_path):
    file = io.BytesIO()
    np.savez(file, x=np.zeros(9))
    data = bytearray(file.getvalue())
    data[200] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(BadFile, match="cannot be read as"):
        read_inputs(tmp_path / "a.npz", (3,))
