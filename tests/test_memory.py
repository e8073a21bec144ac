"""Memory that was freed stays at hand."""

import subprocess
import sys
from typing import Any

import pytest

import pyro_bnn as pb

STEPS = """
import ctypes, resource, sys
from pyro_bnn.common.memory import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def step():
    buffers = [libc.malloc(2_800_000) for _ in range(20)]
    for buffer in buffers:
        ctypes.memset(buffer, 1, 2_800_000)
    for buffer in buffers:
        libc.free(buffer)

if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""


def faults_per_step(how: str) -> int:
    command = [sys.executable, "-c", STEPS, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not pb.keep_freed_memory(), reason="the C library is not glibc")
def test_buffers_are_not_fetched_from_the_system_anew_in_every_step() -> None:
    assert faults_per_step("keep") <= faults_per_step("usual") / 10  # 0 and 13,640 with pages of 4 kB


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert pb.keep_freed_memory() is False


@pytest.mark.parametrize("megabytes", [0, 2001, 1.5, True])
def test_refuses_what_is_no_number_of_megabytes(megabytes: Any) -> None:
    with pytest.raises(ValueError, match=f"megabytes={megabytes} is not allowed: give an integer from 1 to 2000"):
        pb.keep_freed_memory(megabytes)
