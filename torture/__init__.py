"""Faults on purpose: what a run survives, counted. `python -m torture`, or `make torture`."""
