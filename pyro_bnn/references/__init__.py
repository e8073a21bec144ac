"""
Reference posteriors of six small programs, and how far another posterior is from them.

    from pyro_bnn.references import load_reference
    reference = load_reference("one-layer-regression")
    reference.distance(posterior)    # of the same rows: reference.x, reference.y
"""

from pyro_bnn.references.distance import distance
from pyro_bnn.references.programs import PROGRAMS, Program, program_of
from pyro_bnn.references.reference import Reference, load_reference, reference_names

__all__ = ["PROGRAMS", "Program", "Reference", "distance", "load_reference", "program_of", "reference_names"]
