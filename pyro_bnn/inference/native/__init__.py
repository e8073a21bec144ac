"""The element-wise part of a step of independent normals as a small C program, for machines with a compiler."""

from pyro_bnn.inference.native.build import Kernel, kernel, use_kernel

__all__ = ["Kernel", "kernel", "use_kernel"]
