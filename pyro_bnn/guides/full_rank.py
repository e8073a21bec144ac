"""
The full-rank normal guide: w = mu + L z with z ~ N(0, I_P) and L lower triangular with a positive diagonal.

Hence q = N(mu, L L'), the Gaussian of automatic differentiation variational inference (Kucukelbir et al. 2017), and

    H(q)               = 1/2 P (1 + ln 2 pi) + sum_i ln L_ii
    KL(q || N(m, s^2)) = 1/2 [sum_i ((sum_j L_ij^2 + (mu_i - m_i)^2) / s_i^2 + ln s_i^2) - P] - sum_i ln L_ii

What is learned are mu, rho (P) and the P (P - 1) / 2 entries of U below its diagonal, with

    L_ii = softplus(rho_i),        L_ij = softplus(rho_i) U_ij   for j < i

so that correlations are in units of the deviations and learn at every size, as those of the low-rank guide do. The
paper's own parameters are the entries of L. A step costs O(P^2), so that it is a guide for small programs and for last
layers; `TraceLowRank_ELBO` takes its KL in closed form.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast, final

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.guides.base import Role
from pyro_bnn.guides.flat import FlatGuide
from pyro_bnn.guides.init import DEFAULT_LOC, default_scale
from pyro_bnn.guides.softplus import inverse_softplus, softplus

__all__ = ["AutoFullRankNormal", "FullRankNormal", "MAX_SIZE"]

MAX_SIZE = 5000
"""More latent numbers than this are refused: L has P (P + 1) / 2 entries, and the optimizer keeps two more of each."""


@final
class FullRankNormal(dist.MultivariateNormal):
    """N(mu, L L') over vectors (P,), which knows its divergence from independent normals."""

    def kl_to_normal(self, m: Tensor, s: Tensor) -> Tensor:
        """Return KL(q || N(m, s^2)) for m and s (P,) or scalars, (*batch_shape)."""
        m, s = m.double(), s.double().expand(self.loc.shape)
        second = self.variance.double() + (self.loc.double() - m).square()  # (..., P)
        log_det = self.scale_tril.diagonal(dim1=-2, dim2=-1).double().log().sum(-1)
        kl: Tensor = 0.5 * ((second / s.square() + 2 * s.log()).sum(-1) - s.shape[-1]) - log_det
        return kl.to(self.loc.dtype)


@final
class AutoFullRankNormal(FlatGuide):
    """
    A normal guide over all weights with any covariance, for programs of up to a few thousand latent numbers.

    :param model: any Pyro program; the guide is over its unconstrained space.
    :param init_loc: where the mean starts; see :mod:`pyro_bnn.guides.init`.
    :param init_scale: initial standard deviation of every weight, without correlations; default softplus(-4) = 0.0181
        for the weights of a BNN, 0.1 for the sites of another program.

    >>> import torch
    >>> from pyro_bnn.guides import AutoFullRankNormal
    >>> from pyro_bnn.models import BNN, likelihoods, priors
    >>> model = BNN(torch.nn.Linear(3, 2), priors.Normal(), likelihoods.Categorical(), num_data=10)
    >>> guide = AutoFullRankNormal(model)
    >>> guide.distribution().covariance_matrix.shape  # of all 8 weights
    torch.Size([8, 8])
    """

    kind = "full_rank"
    analytic_elbo = "low_rank"
    has_median = True
    roles: ClassVar[Mapping[str, Role]] = {"loc": "loc", "rho": "scale", "whitened_scale_tril": "scale"}
    loc: Tensor
    rho: Tensor
    whitened_scale_tril: Tensor

    def __init__(self, model: Any, *, init_loc: str = DEFAULT_LOC, init_scale: float | None = None) -> None:
        if init_scale is not None and not (math.isfinite(init_scale) and init_scale > 0):
            raise ValueError(f"init_scale={init_scale} is not a standard deviation: pass a finite number above 0")
        super().__init__(model, init_loc)
        self.init_scale = init_scale
        self._build_if_known()

    def spec(self) -> dict[str, Any]:
        """Return the guide as names and numbers."""
        scale = {} if self.init_scale is None else {"init_scale": self.init_scale}
        return {"name": "AutoFullRankNormal", "init_loc": self._init_loc, **scale}

    def _register(self, loc: Tensor, sites: Mapping[str, Any]) -> None:
        size = len(loc)
        if size > MAX_SIZE:
            raise ValueError(
                f"the model has {size} latent numbers, so that a full covariance has {size * (size + 1) // 2}: at most "
                f"{MAX_SIZE} are taken; use AutoLowRankNormal, or leave the first layers out with BNN's random="
            )
        scales = [
            torch.full((self._places[name].size,), self._scale_of(site), dtype=torch.float64)
            for name, site in sites.items()
        ]
        self._add_parameter("loc", loc)
        self._add_parameter("rho", inverse_softplus(torch.cat(scales)).to(loc))
        self._add_parameter("whitened_scale_tril", loc.new_zeros(size * (size - 1) // 2))

    def _scale_of(self, site: Any) -> float:
        return default_scale(site["infer"].get("init", {})) if self.init_scale is None else self.init_scale

    def distribution(self) -> FullRankNormal:
        """Return q over the flat vector."""
        sd, size = softplus(self.rho), len(self.rho)  # (P,)
        rows, columns = torch.tril_indices(size, size, -1, device=self.rho.device)
        units = torch.eye(size, dtype=sd.dtype, device=sd.device).index_put(
            (rows, columns), self.whitened_scale_tril
        )  # (P, P)
        return FullRankNormal(self.loc, scale_tril=sd.unsqueeze(-1) * units)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample the flat vector, and every site as a point of it."""
        self.build(*args, **kwargs)
        infer = cast(Any, {"is_auxiliary": True, "joint_normal": self._places})
        flat = pyro.sample(f"_{self._pyro_name}_latent", cast(Any, self.distribution()), infer=infer)
        return self._sample_at(flat, *args, jacobian=True, **kwargs)

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Return mu and the root of the diagonal of L L'."""
        q = self.distribution()
        return q.mean, q.stddev

    # -- beside others like it -----------------------------------------------------------------------------------

    def unstackable(self) -> str | None:
        """Return why this guide cannot run beside others like it as one batched program, as words; None if it can."""
        return self._joint_unstackable()

    def noise(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """
        Return what a draw is made from, z (P,): the numbers that `forward` draws from a generator in this state.

        :param like: a tensor (P,) whose dtype and device it takes.
        """
        mean, sd = torch.zeros_like(like), torch.ones_like(like)
        return torch.normal(mean, sd, generator=generator)

    @staticmethod
    def _below(own: Mapping[str, Tensor]) -> Tensor:
        """Return U with zeros on and above the diagonal, (..., P, P)."""
        entries, size = own["whitened_scale_tril"], own["loc"].shape[-1]
        rows, columns = torch.tril_indices(size, size, -1, device=entries.device)
        flat = entries.new_zeros(*entries.shape[:-1], size * size).index_copy(-1, rows * size + columns, entries)
        return flat.view(*entries.shape[:-1], size, size)

    def draw_at(self, own: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """
        Return the draw (..., P) that parameters and a noise (..., P) make.

        :param own: the guide's own parameters by name, each with the same leading dimensions.
        """
        whitened = noise + (self._below(own) @ noise.unsqueeze(-1)).squeeze(-1)
        return torch.addcmul(own["loc"], softplus(own["rho"]), whitened)

    def kl_at(self, own: Mapping[str, Tensor], m: Tensor, s: Tensor) -> Tensor:
        """
        Return KL(q || N(m, s^2)) of parameters that are given, (...).

        :param own: the guide's own parameters by name.
        :param m: the prior's means, (..., P).
        :param s: the prior's deviations, (..., P).
        """
        sd, m, s = softplus(own["rho"]).double(), m.double(), s.double()
        second = sd.square() * (1 + self._below(own).double().square().sum(-1)) + (own["loc"].double() - m).square()
        kl = 0.5 * ((second / s.square() + 2 * s.log()).sum(-1) - s.shape[-1]) - sd.log().sum(-1)
        return kl.to(own["loc"].dtype)
