"""Numbers about predictions, one idea a file."""

__all__: list[str] = []
