"""
Keep freed memory at hand.

The buffers of a training step are the same each time, yet glibc may hand them back to the system at the end of one step
and fetch them again, page by page, in the next, which costs more than the noise on the weights does. Whether it does
depends on what happens to lie above them. Other C libraries and allocators are left alone.
"""

import ctypes
import platform

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, from glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 * 1024 * 1024


def keep_freed_memory(megabytes: int = 512) -> bool:
    """
    Let this process keep up to so many megabytes that it has freed; return whether the C library has that setting.

    Call it once, before training. Blocks above 32 MB still go back to the system at once.

    :param megabytes: how much freed memory is kept at most.

    >>> import pyro_bnn as pb
    >>> known = pb.keep_freed_memory(256)  # True with glibc
    """
    if isinstance(megabytes, bool) or not isinstance(megabytes, int) or not 1 <= megabytes <= 2000:
        raise ValueError(f"megabytes={megabytes!r} is not allowed: give an integer from 1 to 2000")
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, megabytes * 1024 * 1024))
