"""The compiled kernel: torch's noise and torch's Adam to the bit, everything else to rounding, and steps made of it."""

import logging
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from pyro_bnn import optim
from pyro_bnn.common.files import cache_folder
from pyro_bnn.guides.mean_field import AutoMeanFieldNormal
from pyro_bnn.guides.softplus import softplus
from pyro_bnn.inference.fit_state import Callback
from pyro_bnn.inference.flat_elbo import FlatMeanField_ELBO, flat_kl
from pyro_bnn.inference.graph import lowering
from pyro_bnn.inference.graph import step as graph_step
from pyro_bnn.inference.minibatch import MinibatchStep
from pyro_bnn.inference.native import build, mean_field, use_kernel
from pyro_bnn.inference.native.build import CHUNK, AdamRule, Kernel, Site, kernel
from pyro_bnn.inference.reparam import flipout, local_reparameterization
from pyro_bnn.inference.svi import fit
from pyro_bnn.models import likelihoods, priors
from pyro_bnn.models.bnn import BNN

N = 60


@pytest.fixture
def native() -> Kernel:
    if build._compiler() is None:
        pytest.skip("there is no C compiler")
    if os.environ.get(build.SWITCH):
        pytest.skip(f"{build.SWITCH} is set")
    found = kernel()
    return build._compiled_and_loaded() if found is None else found  # what is wrong with it fails the test


@pytest.fixture
def anew() -> Iterator[None]:
    """Let the kernel be looked for again, and put back the one that was found."""
    before = list(build._FOUND)
    build._FOUND.clear()
    yield
    build._FOUND[:] = before


@pytest.fixture
def quickly(native: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler's work be a copy of what it made before."""
    made = build.compile_kernel(cache_folder()).read_bytes()
    monkeypatch.setattr(build, "_run_compiler", lambda compiler, options, out: out.write_bytes(made) and None)


def made_noise(native: Kernel, size: int, generator: torch.Generator) -> Tensor:
    zeros, noise = torch.zeros(size), torch.empty(size)
    states = native.noise_states(size, generator)
    native.draw([Site(None, size, 0.0, 1.0)], zeros, zeros, torch.empty(size), noise=noise, states=states)
    return noise


# -- noise -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 17, 31, 624, 1000, 2 * 1024 + 5, CHUNK - 1, CHUNK, CHUNK + 7, 5 * CHUNK + 100])
@pytest.mark.parametrize("skipped", [0, 1, 623, 624, 1000])
def test_noise_is_torch_s_own_and_leaves_the_generator_where_torch_does(
    native: Kernel, size: int, skipped: int
) -> None:
    assert native.makes_noise  # of the torch that the tests run with
    ours, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    for generator in (ours, theirs):
        torch.rand(skipped, generator=generator)
    for _ in range(2):
        assert torch.equal(made_noise(native, size, ours), torch.randn(size, generator=theirs))
        assert torch.equal(ours.get_state(), theirs.get_state())


def test_noise_does_not_depend_on_the_number_of_threads(native: Kernel) -> None:
    drawn = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        drawn.append(made_noise(native, 9 * CHUNK + 3, torch.Generator().manual_seed(1)))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


def test_noise_is_normal_and_independent_between_chunks_and_steps(native: Kernel) -> None:
    """Eight two-sided tests at 1e-4 each, with a fixed seed: a right stream would fail one in 1,250 seeds."""
    generator = torch.Generator().manual_seed(11)
    steps = torch.stack([made_noise(native, 16 * CHUNK, generator) for _ in range(4)]).double()  # (4, P)
    z, limit = steps.flatten(), stats.norm.isf(0.5e-4)
    n = z.numel()
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float(z.pow(power).mean()) - mean) < limit * math.sqrt(variance / n)
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-4
    chunks = steps.view(4, 16, CHUNK)
    for a, b in ((steps[:-1], steps[1:]), (chunks[:, :-1], chunks[:, 1:]), (z[:-1], z[1:])):
        assert abs(float((a * b).sum())) < limit * math.sqrt(a.numel())


# -- values ----------------------------------------------------------------------------------------------------------


def three_sites(size: int) -> tuple[list[int], list[float], list[float]]:
    return [size // 3, size // 3 + 1, size], [0.0, 0.5, -1.0], [1.0, 3.0, 0.25]


@pytest.mark.parametrize("size", [16, 1000, 2 * 1024 + 1, CHUNK + 17, 4 * CHUNK])
@pytest.mark.parametrize("kept", [True, False])
def test_draw_kl_and_gradients_are_those_of_the_formulas(native: Kernel, size: int, kept: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    loc, g = torch.randn(size, generator=generator), torch.randn(size, generator=generator)
    rho = torch.randn(size, generator=generator) * 8 - 2
    z = torch.randn(size, generator=torch.Generator().manual_seed(4))
    stops, locs, invs = three_sites(size)
    pieces = [g[a:b].clone() for a, b in zip((0, *stops), stops, strict=False)]
    sites = [Site(p.data_ptr(), *fields) for p, *fields in zip(pieces, stops, locs, invs, strict=True)]
    states = native.noise_states(size, torch.Generator().manual_seed(4))
    draw, gl, gr = torch.empty(size), torch.empty(size), torch.empty(size)
    kl = native.draw(sites, loc, rho, draw, noise=None, states=states)
    source: Any = {"noise": z, "states": None} if kept else {"noise": None, "states": states}
    native.gradients(sites, loc, rho, 0.3, out=(gl, gr), **source)

    lengths = torch.tensor([len(piece) for piece in pieces])
    m, inv = (torch.tensor(v).double().repeat_interleave(lengths) for v in (locs, invs))
    mu, x = loc.double().requires_grad_(), rho.double().requires_grad_()
    w, wanted = mu + softplus(x) * z.double(), flat_kl(mu, softplus(x), m, 1 / inv)
    ((w * g).sum() + 0.3 * wanted).backward()
    assert mu.grad is not None
    assert x.grad is not None
    assert kl == pytest.approx(wanted.item(), rel=1e-7)
    torch.testing.assert_close(draw.double(), w.detach(), rtol=1e-6, atol=1e-6)
    for found, exact in ((gl, mu.grad), (gr, x.grad)):
        assert (found - exact).norm() <= 3e-7 * exact.norm()


def test_far_ends_of_softplus(native: Kernel) -> None:
    rho = torch.tensor(
        [-200.0, -104.0, -95.0, -87.5, -40.0, -1e-8, 0.0, 1e-8, 17.0, 60.0, 1e30, 3e38, -1.0, 1.0, 2.0, 3]
    )
    zeros, ones = torch.zeros(16), torch.ones(16)
    draw, gl, gr = torch.empty(16), torch.empty(16), torch.empty(16)
    native.draw([Site(None, 16, 0.0, 1.0)], zeros, rho, draw, noise=ones, states=None)
    sigma = torch.nn.functional.softplus(rho.double(), threshold=100)
    torch.testing.assert_close(draw.double(), sigma.float().double(), rtol=3e-7, atol=1.5e-45)
    site, near = Site(ones.data_ptr(), 16, 0.0, 1.0), rho.clamp(min=-40.0)
    native.gradients([site], zeros, near, 0.0, noise=ones, states=None, out=(gl, gr))
    torch.testing.assert_close(gr.double(), near.double().sigmoid(), rtol=3e-7, atol=0)


def test_kl_of_a_deviation_of_zero_is_infinite_and_nan_stays(native: Kernel) -> None:
    for value, holds in ((-200.0, math.isinf), (math.nan, math.isnan)):
        rho = torch.zeros(32)
        rho[7] = value
        zeros = torch.zeros(32)
        kl = native.draw([Site(None, 32, 0.0, 1.0)], zeros, rho, torch.empty(32), noise=zeros, states=None)
        assert holds(kl)


def test_sums_and_gradients_do_not_depend_on_the_number_of_threads(native: Kernel) -> None:
    size = 7 * CHUNK + 5
    generator = torch.Generator().manual_seed(3)
    loc, rho, z, g = (torch.randn(size, generator=generator) for _ in range(4))
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        draw, gl, gr = torch.empty(size), torch.empty(size), torch.empty(size)
        sites = [Site(g.data_ptr(), size, 0.0, 2.0)]
        kl = native.draw(sites, loc, rho, draw, noise=z, states=None)
        native.gradients(sites, loc, rho, 1.0, noise=z, states=None, out=(gl, gr))
        found.append((torch.tensor(kl), draw, gl, gr))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.3, 0.9), (0.0, 0.5)])
def test_adam_is_torch_s_fused_one_to_the_bit(native: Kernel, betas: tuple[float, float]) -> None:
    assert native.steps_adam
    for size in (1, 7, 8, 15, 16, 31, 1003):
        theirs = torch.randn(size)
        own, mean, square = theirs.clone(), torch.zeros(size), torch.zeros(size)
        optimizer = torch.optim.Adam([theirs], lr=3e-3, betas=betas, fused=True)
        for step in range(1, 8):
            theirs.grad = torch.randn(size)
            optimizer.step()
            rule = AdamRule.of(mean, square, 3e-3, *betas, 1e-8, float(step))
            native._adam(build.ctypes.byref(rule), own.data_ptr(), theirs.grad.data_ptr(), size)
        assert torch.equal(own, theirs), size
        assert torch.equal(square, optimizer.state[theirs]["exp_avg_sq"]), size


def test_outputs_of_a_layer_and_their_slope(native: Kernel) -> None:
    size = 2 * CHUNK + 30
    mean, variance = torch.randn(size), torch.rand(size)
    variance[5], variance[6], variance[7] = 0.0, -1e-9, math.nan
    z = torch.randn(size, generator=torch.Generator().manual_seed(4))
    output, slope = native.outputs(mean, variance, native.noise_states(size, torch.Generator().manual_seed(4)))
    deviation = variance.double().clamp_min(0).sqrt()
    wanted = (z / (2 * deviation)).masked_fill(variance <= 0, 0)
    torch.testing.assert_close(output.double(), mean + deviation * z, rtol=1e-6, atol=1e-7, equal_nan=True)
    torch.testing.assert_close(slope.double(), wanted, rtol=1e-6, atol=0, equal_nan=True)


# -- steps -----------------------------------------------------------------------------------------------------------


def wide_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))  # 17,668 weights


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(10, 64, generator=generator), torch.randint(4, (10,), generator=generator)) for _ in range(count)
    ]


def adam() -> Any:
    return optim.Adam({"lr": 1e-2})


def per_site() -> Any:
    return optim.PerSite(
        loc=optim.Adam({"lr": 1e-2}), scale=optim.Adam({"lr": 3e-2, "betas": (0.5, 0.9)}), schedule=optim.Cosine()
    )


def clipped() -> Any:
    return optim.Adam({"lr": 1e-2}, {"clip_norm": 0.1})


def ada_bound() -> Any:
    return optim.AdaBound({"lr": 1e-3, "final_lr": 0.1})


def trained(make: Callable[[], Any], trace: bool | None, steps: int = 12, **guide: Any) -> tuple[Any, ...]:
    """Return parameters, losses and the random state after some steps, and how many recordings there are."""
    model = BNN(wide_net(), priors.Kaiming(), likelihoods.Categorical(), N)
    fitted = AutoMeanFieldNormal(model, **guide)
    elbo = FlatMeanField_ELBO(trace=trace)
    optimizer = make()
    if isinstance(optimizer, optim.PerSite):
        optimizer.name_parameters(dict(fitted.named_parameters()))
        optimizer.prepare(3, steps)
    take = MinibatchStep(model, fitted, optimizer, elbo, N, undisturbed=True)
    torch.manual_seed(1)
    losses = [take(0.7, batch)[0] for batch in batches(steps)]
    recorded = 0 if elbo._recorded is None else len(elbo._recorded)
    numbers = [p.detach().clone() for p in fitted.parameters()]
    return numbers, torch.stack(losses), torch.get_rng_state(), recorded


@pytest.mark.parametrize("make", [adam, per_site, clipped, ada_bound])
def test_recorded_steps_are_the_eager_ones_to_the_bit(native: Kernel, make: Callable[[], Any]) -> None:
    recorded, eager = trained(make, None), trained(make, False)
    assert recorded[3] == 1
    assert all(map(torch.equal, recorded[0], eager[0]))
    assert torch.equal(recorded[1], eager[1])
    assert torch.equal(recorded[2], eager[2])


@pytest.mark.parametrize("make", [adam, per_site])
def test_steps_are_those_of_torch_s_operations_to_rounding(native: Kernel, make: Callable[[], Any]) -> None:
    ours = trained(make, None, steps=4)
    use_kernel(False)
    try:
        theirs = trained(make, None, steps=4)
    finally:
        use_kernel(True)
    assert not torch.equal(ours[1], theirs[1])  # it was the kernel
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=0)
    assert torch.equal(ours[2], theirs[2])
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert (a - b).norm() <= 1e-4 * b.norm()


@pytest.mark.parametrize("handler", [local_reparameterization, flipout])
@pytest.mark.parametrize("on", [True, False])
def test_steps_with_draws_by_layer_are_the_same_by_pyro_plainly_and_recorded(
    native: Kernel, handler: Callable[[], Any], on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mean_field, "MIN_SIZE", 32)  # outputs are (10, 256)
    use_kernel(on)
    try:
        with handler():
            recorded = trained(adam, None)
        with handler():
            plainly = trained(adam, False)
        monkeypatch.setattr(FlatMeanField_ELBO, "_plain_terms", lambda *args: None)
        with handler():
            by_pyro = trained(adam, False)
    finally:
        use_kernel(True)
    assert recorded[3] == 1
    assert all(map(torch.equal, recorded[0], plainly[0]))
    assert torch.equal(recorded[1], plainly[1])
    assert torch.equal(recorded[2], plainly[2])
    assert torch.equal(recorded[2], by_pyro[2])
    if on and handler is flipout:  # its weights are drawn by the kernel, and Pyro draws them by torch's operations
        torch.testing.assert_close(recorded[1], by_pyro[1], rtol=1e-3, atol=0)
        torch.testing.assert_close(recorded[1][:2], by_pyro[1][:2], rtol=1e-5, atol=0)
    else:
        assert all(map(torch.equal, recorded[0], by_pyro[0]))
        assert torch.equal(recorded[1], by_pyro[1])


def test_two_handlers_at_once_are_left_to_pyro(native: Kernel) -> None:
    with flipout(), local_reparameterization():
        found = trained(adam, None, steps=4)
    with local_reparameterization():
        inner = trained(adam, None, steps=4)
    assert found[3] == 0
    assert all(map(torch.equal, found[0], inner[0]))


def test_adam_moves_in_the_kernel_s_pass(native: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    make = mean_field.Deferred.gradients
    monkeypatch.setattr(mean_field.Deferred, "gradients", lambda self: written.append(1) or make(self))
    trained(adam, True, steps=8)
    assert len(written) == 2 + 2 * 3  # when it is recorded, and at runs 1, 2 and 4, which are checked: both ways
    written.clear()
    trained(clipped, True, steps=8)
    assert len(written) == 8 + 1 + 3


def test_noise_made_again_is_the_noise_that_was_kept(native: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = trained(adam, None)
    monkeypatch.setattr(mean_field, "KEPT_SIZE", 16)
    again = trained(adam, None)
    assert all(map(torch.equal, kept[0], again[0]))
    assert torch.equal(kept[1], again[1])


def test_a_long_vector_s_recording_is_checked_by_a_digest(native: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = trained(ada_bound, None)
    eager = trained(adam, False)
    monkeypatch.setattr(mean_field, "KEPT_SIZE", 16)
    made = []
    digest = mean_field.Deferred.digest
    monkeypatch.setattr(mean_field.Deferred, "digest", lambda self, *a: made.append(a) or digest(self, *a))
    again = trained(ada_bound, True)  # an optimizer that takes gradients
    assert len(made) == 2 * (1 + 4)  # the program's and the recording's, when it is made and at runs 1, 2, 4, 8
    assert again[3] == 1
    assert all(map(torch.equal, kept[0], again[0]))

    def another(self: Any, *places: Tensor) -> Any:  # the recording's is called without places
        found = digest(self, *places)
        return found if places else found._replace(norms=found.norms * 1.01)

    monkeypatch.setattr(mean_field.Deferred, "digest", another)
    refused = trained(adam, True)
    assert refused[3] == 0
    assert all(map(torch.equal, refused[0], eager[0]))
    assert torch.equal(refused[2], eager[2])


def test_a_long_vector_s_memory_is_given_back_while_the_program_runs_beside(
    native: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_step, "KEPT_SIZE", 16)
    found: list[tuple[bool, bool]] = []  # whether buffers were there before, and when the program ran beside
    give_back = graph_step._Recorded.give_back

    def watched(recorded: Any) -> None:
        before = "draw" in recorded.buffers
        give_back(recorded)
        found.append((before, "draw" in recorded.buffers))

    monkeypatch.setattr(graph_step._Recorded, "give_back", watched)
    assert trained(adam, True)[3] == 1
    assert found == [(True, False)] * 4  # at runs 1, 2, 4, 8


@pytest.mark.parametrize("make", [adam, clipped])
def test_wide_gradients_lie_where_those_of_the_run_before_did(
    native: Kernel, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trained(make, trace=True)
    kept: list[bool] = []
    product = mean_field.product

    def watched(name: str, a: Tensor, b: Tensor) -> Tensor:
        made = product(name, a, b)
        buffers = mean_field._scope.buffers or {}
        kept.append(made.data_ptr() in [buffer.data_ptr() for buffer in buffers.values()])
        return made

    monkeypatch.setattr(lowering, "_MAPPED", 1)
    monkeypatch.setattr(mean_field, "product", watched)
    after = trained(make, trace=True)
    assert all(map(torch.equal, before[0], after[0]))
    assert torch.equal(before[1], after[1])
    assert before[3] == after[3] == 1
    assert len(kept) > 12
    assert all(kept)


@pytest.mark.parametrize("guide", [{"max_scale": 0.5}, {"groups": "site"}, {"freeze": "scale"}])
def test_other_guides_are_left_to_torch(native: Kernel, guide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mean_field, "_kernel", lambda: pytest.fail("the kernel was used"))
    assert trained(adam, None, steps=3, **guide)[3] == 1


def test_a_deep_network_with_batch_normalisation_is_recorded(native: Kernel) -> None:
    """Its gradients move by more than rounding where a draw moves by a unit in the last place."""
    torch.manual_seed(0)
    layers = [part for _ in range(12) for part in (nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU())]
    net = nn.Sequential(nn.Linear(64, 48), *layers, nn.Linear(48, 4))
    model = BNN(net, priors.Kaiming(), likelihoods.Categorical(), N)
    elbo = FlatMeanField_ELBO()
    take = MinibatchStep(model, AutoMeanFieldNormal(model), adam(), elbo, N, undisturbed=True)
    for batch in batches(12):
        take(1.0, batch)
    assert elbo._recorded is not None
    assert len(elbo._recorded) == 1


def test_a_loss_that_is_not_finite_moves_nothing(native: Kernel) -> None:
    model = BNN(wide_net(), priors.Kaiming(), likelihoods.Categorical(), N)
    guide = AutoMeanFieldNormal(model)
    take = MinibatchStep(model, guide, adam(), FlatMeanField_ELBO(), N, undisturbed=True)
    good = batches(9)
    for batch in good:
        take(1.0, batch)
    before = [p.detach().clone() for p in guide.parameters()]
    with pytest.raises(Exception, match="nan"):
        take(1.0, (good[0][0] * math.nan, good[0][1]))
    assert all(map(torch.equal, before, guide.parameters()))


def test_a_resumed_fit_goes_on_to_the_same_bits(native: Kernel) -> None:
    x, y = (torch.cat(parts) for parts in zip(*batches(6), strict=True))

    def run(epochs: int, resume: Any = None) -> tuple[list[Tensor], Any]:
        model = BNN(wide_net(), priors.Kaiming(), likelihoods.Categorical(), N)
        guide = AutoMeanFieldNormal(model)
        states: list[Any] = []

        class Keeper(Callback):
            def epoch(self, state: Any) -> None:
                states.append(state.state_dict())

        fit(model, guide, adam(), (x, y), epochs=epochs, batch_size=10, seed=3, resume=resume, callbacks=[Keeper()])
        return [p.detach().clone() for p in guide.parameters()], states

    whole, states = run(4)
    resumed, _ = run(4, resume=states[1])
    assert all(map(torch.equal, whole, resumed))


# -- with and without a compiler ---------------------------------------------------------------------------------------


def test_without_a_compiler_steps_are_torch_s(
    anew: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with caplog.at_level(logging.INFO, "pyro_bnn"):
        found = trained(adam, None, steps=3)
    assert kernel() is None
    assert "no C compiler" in caplog.text
    assert found[3] == 1
    assert bool(torch.isfinite(found[1]).all())


def test_the_environment_switches_it_off(anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.SWITCH, "off")
    assert kernel() is None


def test_a_folder_that_others_write_to_is_not_trusted(native: Kernel, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="other users"):
        build.compile_kernel(tmp_path)
    tmp_path.chmod(0o700)
    path = build.compile_kernel(tmp_path)
    assert build.compile_kernel(tmp_path) == path
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_file_that_is_not_whole_is_not_loaded(quickly: None, tmp_path: Path) -> None:
    path = build.compile_kernel(tmp_path)
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(content)
        assert build.compile_kernel(tmp_path) == path
        assert path.read_bytes() == whole
        assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_machines_that_share_a_folder_have_files_of_their_own(
    quickly: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.compile_kernel(tmp_path)
    monkeypatch.setattr(build, "_machine", lambda: "another")
    assert build.compile_kernel(tmp_path) != path
    assert len(list(tmp_path.iterdir())) == 2


def test_processes_that_compile_at_once_leave_one_file(quickly: None, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:  # all compile: there is nothing yet
        paths = set(pool.map(build.compile_kernel, [tmp_path] * 3))
    assert [tmp_path / p.name for p in tmp_path.iterdir()] == list(paths)


@pytest.mark.parametrize("why", ["full", "no home"])
def test_without_a_folder_to_write_to_it_is_compiled_for_this_process(
    quickly: None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    if why == "full":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made there by anybody
    else:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(build.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home directory")))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    with caplog.at_level(logging.INFO, "pyro_bnn"):
        found = build._compiled_and_loaded()
    assert found.makes_noise
    assert "is not kept" in caplog.text
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_windows_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build.os, "name", "nt")
    with pytest.raises(RuntimeError, match="not compiled on"):
        build.compile_kernel(tmp_path)


def test_a_kernel_that_computes_something_else_is_not_used(native: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build.compile_kernel(cache_folder())
    run = Kernel.draw
    monkeypatch.setattr(Kernel, "draw", lambda *args, **options: run(*args, **options) * 1.001)
    with pytest.raises(ArithmeticError, match="does not compute"):
        Kernel(path)


def test_use_kernel_wants_a_bool() -> None:
    with pytest.raises(TypeError, match="give True or False"):
        use_kernel(1)  # type: ignore[arg-type]
