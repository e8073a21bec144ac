"""One architecture a file."""

__all__: list[str] = []
