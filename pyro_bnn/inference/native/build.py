"""
Compile the C files of this folder, keep the result in the user's cache, load it, and test it against torch.

It is compiled at its first use with the C compiler of the machine (`$CC`, cc, gcc, clang), in about two seconds, into
`$XDG_CACHE_HOME/pyro_bnn` (default `~/.cache/pyro_bnn`), under a name made of its source, compiler, options, processor
and C library, so that machines may share a folder, and of its own content: a file that is not whole has another name
than it should, is not loaded, and is compiled anew. Where there is no such folder to write to, it is compiled by every
process for itself. Without a compiler, on processors other than CPUs, on Windows, or with `PYRO_BNN_KERNEL=off` in the
environment, steps are made of torch's operations and give the same numbers but for rounding.

When it is loaded four things are tested, in a few milliseconds: that its values are those of torch's operations, that
its noise is torch's own stream to the bit, and that its step of Adam and its pooling are those of torch's kernels to
the bit. The first is a condition for using it at all; what another version of torch makes otherwise is left to torch.
"""

import ctypes
import hashlib
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from logging import getLogger
from pathlib import Path
from typing import TypeAlias, final

import torch
from torch import Tensor

from pyro_bnn.common.files import cache_folder

__all__ = ["AdamRule", "Kernel", "Site", "kernel", "use_kernel"]

log = getLogger("pyro_bnn")

SOURCES = tuple(Path(__file__).with_name(name) for name in ("mean_field.c", "max_pool.c"))
SWITCH = "PYRO_BNN_KERNEL"
CHUNK = 16384
"""Numbers that one thread takes at a time."""

_OPTIONS = ("-std=c11", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
_WIDE = ("-mprefer-vector-width=512",)
_STATE_BYTES = 5056  # of torch's generator on CPUs
_WORDS = 626  # of its state as the kernel keeps it
_SECONDS = 120

Pointer = ctypes.c_void_p


class Site(ctypes.Structure):
    """A site: the gradient of its draw (None: 0), where it ends in the flat vector, its prior."""

    _fields_ = (
        ("gradient", Pointer),
        ("stop", ctypes.c_int64),
        ("prior_loc", ctypes.c_float),
        ("prior_inv_scale", ctypes.c_float),
    )


Sites: TypeAlias = Sequence[Site] | ctypes.Array[Site]


class AdamRule(ctypes.Structure):
    """A step of Adam: pointers to both moments, and its numbers as torch's kernel rounds them."""

    _fields_ = (
        ("mean", Pointer),
        ("square", Pointer),
        *((name, ctypes.c_float) for name in ("step", "root", "weight", "beta2", "share", "eps")),
    )

    @classmethod
    def of(
        cls, mean: Tensor, square: Tensor, lr: float, beta1: float, beta2: float, eps: float, step: float
    ) -> "AdamRule":
        """Return the rule of step number `step` (1 is the first)."""
        size, root = lr / (1 - beta1**step), math.sqrt(1 - beta2**step)
        return cls(mean.data_ptr(), square.data_ptr(), -size, root, 1 - beta1, beta2, 1 - beta2, eps)


class _Work(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("size", "chunk", "first", "last")),
        *((name, Pointer) for name in ("sites", "loc", "rho", "noise", "states", "draw", "kl")),
        ("kl_gradient", ctypes.c_float),
        ("grad_loc", Pointer),
        ("grad_rho", Pointer),
        ("rules", AdamRule * 2),
        ("next", ctypes.c_int64),
    )


class _Pooling(ctypes.Structure):
    _fields_ = (
        *((name, Pointer) for name in ("image", "maximum", "place")),
        *((name, ctypes.c_int64) for name in ("planes", "height", "width", "next")),
    )


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@final
class Kernel:
    """
    The compiled program; vectors are contiguous float32 tensors of a CPU.

    :param path: the shared library.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._run, self._states, self._adam = library.run, library.noise_states, library.adam_alone
        self._run.argtypes = (Pointer, Pointer, ctypes.c_uint)
        self._states.argtypes = (Pointer, Pointer, ctypes.c_int64, ctypes.c_int64)
        self._adam.argtypes = (Pointer, Pointer, Pointer, ctypes.c_int64)
        self._pool = library.max_pool
        self._pool.argtypes = (Pointer, Pointer, ctypes.c_uint)
        for function in (self._run, self._states, self._adam, self._pool):
            function.restype = None
        try:
            self._parallel = ctypes.cast(ctypes.CDLL(None).GOMP_parallel, Pointer)  # of the OpenMP that torch brings
        except (AttributeError, OSError, TypeError):
            self._parallel = Pointer(None)
        self._check_values()
        self.makes_noise = bool(library.has_fma()) and self._same_noise()
        """Whether its noise is torch's."""
        self.steps_adam = self._same_adam()
        """Whether its step of Adam is torch's."""
        self.pools = self._same_pooling()
        """Whether its pooling is torch's."""

    # -- the passes ----------------------------------------------------------------------------------------------

    @staticmethod
    def chunks(size: int) -> int:
        """Return how many chunks a vector has."""
        return max(1, size // CHUNK)

    def noise_states(self, size: int, generator: torch.Generator, out: Tensor | None = None) -> Tensor:
        """Return the states of the generator that make `size` numbers, int32, and let it go on by as many."""
        states = torch.empty((self.chunks(size) + 1) * _WORDS, dtype=torch.int32) if out is None else out
        now = generator.get_state()
        self._states(states.data_ptr(), now.data_ptr(), size, CHUNK)
        generator.set_state(now)
        return states

    def outputs(self, mean: Tensor, variance: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean + sqrt(variance) z, and its slope in the variance; of at least 16 contiguous numbers."""
        work = self._work(mean, variance)
        output, slope = torch.empty_like(mean), torch.empty_like(mean)
        work.states, work.draw, work.grad_loc = map(_pointer, (states, output, slope))
        self._do(work, None)
        return output, slope

    def _work(self, loc: Tensor, rho: Tensor) -> _Work:
        size = loc.numel()
        return _Work(size=size, chunk=CHUNK, last=self.chunks(size), loc=_pointer(loc), rho=_pointer(rho))

    def _do(self, work: _Work, sites: Sites | None) -> None:
        # an array lives until the end of this call, as the pointer has to
        array = sites if isinstance(sites, ctypes.Array) else (Site * len(sites or ()))(*(sites or ()))
        work.sites = None if sites is None else ctypes.addressof(array)
        self._run(ctypes.byref(work), self._parallel, torch.get_num_threads())

    def draw(
        self,
        sites: Sites,
        loc: Tensor,
        rho: Tensor,
        out: Tensor,
        *,
        noise: Tensor | None,
        states: Tensor | None,
    ) -> float:
        """Write a draw (P,) to `out` and return the KL; `noise` (P,) is written if there are `states`, else read."""
        sums = torch.empty(self.chunks(loc.numel()), dtype=torch.float64)
        work = self._work(loc, rho)
        work.draw, work.kl, work.noise, work.states = map(_pointer, (out, sums, noise, states))
        self._do(work, sites)
        return float(sums.sum())

    def gradients(
        self,
        sites: Sites,
        loc: Tensor,
        rho: Tensor,
        kl_gradient: float,
        *,
        noise: Tensor | None,
        states: Tensor | None,
        out: Sequence[Tensor] | Tensor | None = None,
        rules: tuple[AdamRule, AdamRule] | None = None,
        chunks: tuple[int, int] | None = None,
    ) -> None:
        """
        Write the gradients with respect to loc and rho (P,) to `out`, or move these by a step of Adam each.

        :param chunks: do these only, from the first up to the second; `out` is then for the entries of these.
        """
        work = self._work(loc, rho)
        work.noise, work.states = (_pointer(noise), None) if states is None else (None, _pointer(states))
        work.kl_gradient = kl_gradient
        if rules is not None:
            work.rules[0], work.rules[1] = rules
        elif out is not None:
            first, last = chunks or (0, work.last)
            work.first, work.last = first, last
            work.grad_loc, work.grad_rho = (tensor.data_ptr() - 4 * CHUNK * first for tensor in out)
        self._do(work, sites)

    def max_pool(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the maxima of windows of 2 x 2 pixels of contiguous images (..., H, W), and their places in these."""
        *planes, height, width = images.shape
        shape = (*planes, height // 2, width // 2)
        maxima, places = images.new_empty(shape), images.new_empty(shape, dtype=torch.int64)
        pointers = map(_pointer, (images, maxima, places))
        work = _Pooling(*pointers, math.prod(planes), height, width)
        self._pool(ctypes.byref(work), self._parallel, torch.get_num_threads())
        return maxima, places

    # -- tests ---------------------------------------------------------------------------------------------------

    def _check_values(self) -> None:
        size = 3 * CHUNK + 5
        generator = torch.Generator().manual_seed(0)
        loc, noise, g = (torch.randn(size, generator=generator) for _ in range(3))
        rho = torch.linspace(-30, 20, size)
        stops, priors = (size // 3, size // 3 + 1, size), ((0.0, 1.0), (0.5, 3.0), (-1.0, 0.25))
        pieces = [g[a:b].clone() for a, b in zip((0, *stops), stops, strict=False)]
        sites = [Site(p.data_ptr(), b, *prior) for p, b, prior in zip(pieces, stops, priors, strict=True)]
        draw, gl, gr = torch.empty(size), torch.empty(size), torch.empty(size)
        kl = self.draw(sites, loc, rho, draw, noise=noise, states=None)
        self.gradients(sites, loc, rho, 0.5, noise=noise, states=None, out=(gl, gr))
        lengths = torch.tensor([b - a for a, b in zip((0, *stops), stops, strict=False)])
        m, inv = torch.tensor(priors).double().repeat_interleave(lengths, 0).unbind(1)
        mu, x, z = loc.double(), rho.double(), noise.double()
        sigma = torch.nn.functional.softplus(x, threshold=50)
        d, r = (mu - m) * inv, sigma * inv
        wanted = (d.square() + r.square() - 1).div(2).sub(r.log()).sum()
        of_loc, of_rho = g + 0.5 * d * inv, (g * z + 0.5 * (r - 1 / r) * inv) * x.sigmoid()
        for found, value in (
            (draw, mu + sigma * z),
            (torch.tensor(kl), wanted),
            (gl, of_loc),
            (gr, of_rho),
        ):
            if not bool((found.double() - value).norm() <= 1e-6 * value.norm()):
                raise ArithmeticError("the compiled kernel does not compute what torch does")

    def _same_noise(self) -> bool:
        a, b = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
        if a.get_state().numel() != _STATE_BYTES:
            return False
        for size in (16 * 624, 2 * CHUNK + 37, 1000, 31):
            zeros, noise = torch.zeros(size), torch.empty(size)
            states = self.noise_states(size, a)
            self.draw([Site(None, size, 0.0, 1.0)], zeros, zeros, torch.empty(size), noise=noise, states=states)
            if not torch.equal(noise, torch.randn(size, generator=b)) or not torch.equal(a.get_state(), b.get_state()):
                return False
        return True

    def _same_adam(self) -> bool:
        size, (beta1, beta2), eps, lr = 1003, (0.9, 0.999), 1e-8, 1e-3
        generator = torch.Generator().manual_seed(2)
        theirs = torch.randn(size, generator=generator)
        own, mean, square = theirs.clone(), torch.zeros(size), torch.zeros(size)
        optimizer = torch.optim.Adam([theirs], lr=lr, betas=(beta1, beta2), eps=eps, fused=True)
        for step in range(1, 4):
            theirs.grad = torch.randn(size, generator=generator)
            optimizer.step()
            rule = AdamRule.of(mean, square, lr, beta1, beta2, eps, float(step))
            self._adam(ctypes.byref(rule), own.data_ptr(), theirs.grad.data_ptr(), size)
        state = optimizer.state[theirs]
        pairs = ((own, theirs), (mean, state["exp_avg"]), (square, state["exp_avg_sq"]))
        return all(torch.equal(a, b) for a, b in pairs)

    def _same_pooling(self) -> bool:
        images = torch.randn(2, 3, 7, 300, generator=torch.Generator().manual_seed(3)).relu()  # with many equal pixels
        for i, value in enumerate((-0.0, math.nan, math.inf, -math.inf)):
            images.view(-1)[i :: 11 + i] = value
        for part in (images, images[..., :9].contiguous(), torch.full((1, 4, 4), -math.inf)):
            ours, theirs = self.max_pool(part), torch.ops.aten.max_pool2d_with_indices(part, [2, 2], [2, 2])
            same = torch.equal(ours[0].view(torch.int32), theirs[0].view(torch.int32))
            if not same or not torch.equal(ours[1], theirs[1]):
                return False
        return True


# -- compiling ---------------------------------------------------------------------------------------------------


def _compiler() -> str | None:
    wanted = os.environ.get("CC")
    return next((found for name in (wanted, "cc", "gcc", "clang") if name and (found := shutil.which(name))), None)


def _machine() -> str:
    """Return what a compiled file depends on beside source and compiler; the machine's name where that is not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.node())
    except OSError:
        flags = platform.node()
    return f"{platform.machine()} {platform.processor()} {platform.libc_ver()} {flags}"


def _run_compiler(compiler: str, options: Sequence[str], out: Path) -> str | None:
    """Compile to `out`; return what the compiler said if it failed."""
    command = [compiler, *options, "-shared", "-fPIC", *map(str, SOURCES), "-o", str(out), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def _content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:24]


def _is_ours(place: Path) -> None:
    """Refuse a place that others may write to: what is loaded from there runs as ourselves."""
    about = place.stat()
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PermissionError(f"{place} can be written to by other users")


def compile_kernel(folder: Path) -> Path:
    """
    Return the compiled kernel in a folder, compiled if it is not there whole.

    Raises OSError where the folder is not to be used, RuntimeError where there is nothing to compile with.
    """
    if os.name != "posix":
        raise RuntimeError(f"the kernel is not compiled on {platform.system()}")
    compiler = _compiler()
    if compiler is None:
        raise RuntimeError("there is no C compiler (cc, gcc or clang; or name one with CC)")
    sources = [path.read_text() for path in SOURCES]
    parts = (*sources, compiler, str(os.stat(compiler).st_mtime_ns), *_OPTIONS, *_WIDE, _machine())
    stem = f"kernel-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _is_ours(folder)
    for path in sorted(folder.glob(f"{stem}-*.so")):
        _is_ours(path)
        if path.name == f"{stem}-{_content(path)}.so":
            return path
        path.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(prefix=stem, suffix=".partial", dir=folder)
    os.close(handle)
    partial = Path(name)
    try:
        failure = _run_compiler(compiler, (*_OPTIONS, *_WIDE), partial)
        if failure is not None:  # not every compiler knows every option
            failure = _run_compiler(compiler, _OPTIONS, partial)
        if failure is not None:
            raise RuntimeError(f"{compiler} failed: {failure}")
        path = folder / f"{stem}-{_content(partial)}.so"
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _compiled_and_loaded() -> Kernel:
    """Return the kernel from the user's cache, or from a folder of this process where there is none to write to."""
    try:
        return Kernel(compile_kernel(_cache()))
    except OSError as error:
        log.info("the compiled kernel is not kept: %s", error)
        with tempfile.TemporaryDirectory(prefix="pyro_bnn-") as folder:
            return Kernel(compile_kernel(Path(folder)))


def _cache() -> Path:
    try:
        return cache_folder()
    except RuntimeError as error:  # nobody knows where this user's home is
        raise FileNotFoundError(str(error)) from error


# -- the one of this process -------------------------------------------------------------------------------------

_FOUND: list[Kernel | None] = []
_on = True


def use_kernel(on: bool) -> None:
    """
    Say whether steps may use the compiled kernel; they may by default.

    >>> from pyro_bnn.inference.native import use_kernel
    >>> use_kernel(False)  # torch's operations only
    >>> use_kernel(True)
    """
    global _on
    if not isinstance(on, bool):
        raise TypeError(f"use_kernel({on!r}) is not allowed: give True or False")
    _on = on


def kernel() -> Kernel | None:
    """Return the kernel, compiled if need be; None where there is none, which is said once."""
    if not _on:
        return None
    if not _FOUND:
        if sys.getprofile() is not None:  # a step is being watched: not now
            return None
        _FOUND.append(_load())
    return _FOUND[0]


def _load() -> Kernel | None:
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "false", "no"):
        return None
    try:
        return _compiled_and_loaded()
    except Exception as error:  # whatever goes wrong, torch's operations compute the same
        first = str(error).strip().partition("\n")[0]
        log.info("steps of wide networks run without the compiled kernel: %s: %s", type(error).__name__, first)
        return None
