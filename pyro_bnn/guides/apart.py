"""
Draws of a guide that is called inside vectorised plates, as Pyro's parallel Predictive and its vectorised particles do.

A Normal is drawn anew for every element of a plate around it; a point is not, it is repeated. A guide whose draw is one
point at a time (a mask, a stored draw, a member) is therefore called once per element, with the plates out of sight,
and its draws are put side by side: element s of the plate holds draw s.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch

from pyro_bnn.common.sites import is_subsample

__all__ = ["apart", "surrounding_plates"]


def surrounding_plates(name: str) -> torch.Size:
    """Return the batch shape that the plates around a call give to a site; () if there are none."""
    infer = cast(Any, {"is_auxiliary": True, "_do_not_trace": True})
    with torch.no_grad():
        return pyro.sample(f"_{name}_plates", dist.Delta(torch.zeros(())), infer=infer).shape


def apart(name: str, draw: Callable[[], Any], *, moves_model: bool = False) -> Any:
    """
    Call `draw` once, or once for every element of the plates around it.

    :param name: the guide's, for the errors and for names that no other site has.
    :param moves_model: whether a draw puts values of its own into the model, so that draws cannot stand side by side.
    """
    lead = surrounding_plates(name)
    if not lead:
        return draw()
    if moves_model:
        raise ValueError(
            f"{name} brings values of the model's own parameters with every draw, so that draws cannot be made side by "
            f"side: use parallel=False (vectorize_particles=False), or Posterior.predict"
        )
    traces: list[Any] = []
    for _ in range(lead.numel()):
        with poutine.block():
            traces.append(poutine.trace(draw).get_trace())
    result, plates = {}, {}
    for site_name, site in traces[0].nodes.items():
        if site["type"] != "sample" or is_subsample(site) or (site["infer"] or {}).get("is_auxiliary"):
            continue
        frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized]
        inside = len(site["fn"].batch_shape)  # the plates of the site's own
        values = torch.stack([trace.nodes[site_name]["value"] for trace in traces])  # (S, *batch, *event)
        outer = lead[: len(lead) - inside] if inside else lead
        values = values.reshape(*outer, *values.shape[1:])
        with ExitStack() as stack:
            for frame in frames:
                if frame.name not in plates:
                    plates[frame.name] = pyro.plate(frame.name, frame.size, dim=frame.dim)
                stack.enter_context(plates[frame.name])
            result[site_name] = pyro.sample(site_name, dist.Delta(values, event_dim=site["fn"].event_dim))
    return result
