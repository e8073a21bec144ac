import pytest
import torch

from pyro_bnn.data.augment import AUGMENTATIONS, crop_flip, flip, none


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_table():
    assert set(AUGMENTATIONS) == {"none", "flip", "crop_flip"}


def test_none_is_the_identity():
    x = torch.randn(4, 1, 5, 5)
    assert none(x, rng()) is x


def shifted(image, dy, dx, mirrored):
    """One image, pixel by pixel: out[i, j] = image[i + dy, j' + dx], j' mirrored, 0 outside."""
    _, h, w = image.shape
    out = torch.zeros_like(image)
    for i in range(h):
        for j in range(w):
            column = w - 1 - j if mirrored else j
            if 0 <= i + dy < h and 0 <= column + dx < w:
                out[:, i, j] = image[:, i + dy, column + dx]
    return out


def test_every_image_is_one_of_the_162_shifts_and_all_kinds_occur():
    image = torch.arange(1.0, 1 + 2 * 6 * 7).reshape(2, 6, 7)  # not square, no symmetry
    candidates = {
        (dy, dx, m): shifted(image, dy, dx, m) for dy in range(-4, 5) for dx in range(-4, 5) for m in (False, True)
    }
    out = crop_flip(image.expand(3000, -1, -1, -1), rng())
    seen = {}
    for key, candidate in candidates.items():
        seen[key] = int((out == candidate).flatten(1).all(1).sum())
    assert sum(seen.values()) == 3000
    # each count is Binomial(3000, 1/162): P(any of 162 is 0) < 162 exp(-18.5) < 2e-6
    assert min(seen.values()) > 0


def test_flip_mirrors_every_second_image():
    x = torch.arange(1.0, 1 + 400 * 2 * 3 * 5).reshape(400, 2, 3, 5)
    before = x.clone()
    out = flip(x, rng())
    mirrored = torch.tensor([torch.equal(a, b.flip(2)) for a, b in zip(out, x, strict=True)])
    assert torch.equal(out[~mirrored], x[~mirrored])
    assert 140 < int(mirrored.sum()) < 260  # Binomial(400, 1/2): beyond six standard deviations, p < 2e-9
    assert torch.equal(x, before)


def test_images_do_not_mix_and_the_input_stays():
    x = torch.arange(1.0, 9.0)[:, None, None, None].expand(8, 3, 10, 10).clone()
    before = x.clone()
    out = crop_flip(x, rng())
    assert out.shape == x.shape
    assert torch.equal(x, before)
    for i in range(8):
        assert set(out[i].unique().tolist()) <= {0.0, i + 1.0}
        assert float(out[i, 0, 4:6, 4:6].min()) == i + 1.0  # the middle survives every shift


@pytest.mark.parametrize("augment", [flip, crop_flip])
def test_same_generator_same_images_and_global_state_untouched(augment):
    x = torch.randn(16, 1, 8, 8)
    before = torch.get_rng_state()
    assert torch.equal(augment(x, rng(1)), augment(x, rng(1)))
    assert not torch.equal(augment(x, rng(1)), augment(x, rng(2)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("augment", [flip, crop_flip])
def test_without_a_generator_the_global_one_decides(augment):
    x = torch.randn(16, 1, 8, 8)
    torch.manual_seed(5)
    one = augment(x)
    torch.manual_seed(5)
    assert torch.equal(one, augment(x))


@pytest.mark.parametrize("name", ["flip", "crop_flip"])
def test_tables_error(name):
    with pytest.raises(ValueError, match=rf"shape \(4, 3\); {name} needs \(B, C, H, W\)"):
        AUGMENTATIONS[name](torch.zeros(4, 3))
