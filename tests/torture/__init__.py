"""Torture: hostile files, killed processes. `python -m tests.torture --share .01` runs a hundredth of it."""
