"""Recording a step as tensor operations: everything that needs names which torch and Pyro keep to themselves."""

from pyro_bnn.inference.graph.private import MISSING, NAMES

__all__ = ["MISSING", "NAMES"]
