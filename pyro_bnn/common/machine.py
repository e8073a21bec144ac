"""What a program runs on, for the records of a training and of a benchmark."""

import platform
from pathlib import Path

__all__ = ["cpu_name"]

_CPUINFO = Path("/proc/cpuinfo")


def cpu_name() -> str:
    """Return the processor's name where the system tells it, else its architecture."""
    if _CPUINFO.is_file():
        names = [line.partition(":")[2].strip() for line in _CPUINFO.read_text().splitlines() if "model name" in line]
        if names:
            return names[0]
    return platform.processor() or platform.machine()
