"""
Where a guide of this library begins: the contract that it keeps, and how that goes with a Pyro module.

The contract itself, :class:`Guide`, with what each answer means and what holds where a guide says nothing, is in
:mod:`pyro_bnn.common.contract`, so that inference and analysis can ask without importing a single guide.
"""

from abc import ABCMeta

from pyro.nn import PyroModule

from pyro_bnn.common.contract import Dealt, ForeignGuide, Guide, Role, SiteView, Wrapper, contract_of

__all__ = ["Dealt", "ForeignGuide", "Guide", "GuideMeta", "Role", "SiteView", "Wrapper", "contract_of"]


class GuideMeta(type(PyroModule), ABCMeta):  # type: ignore[misc]
    """The class of guides that are Pyro modules, too: a guide with an abstract method left is not built."""
