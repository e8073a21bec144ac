"""The version, in a file of its own so that the build can read it without importing torch."""

__version__ = "0.1.0"
"""The version of the package."""
