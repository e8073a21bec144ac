"""What every room needs: turns with what Pyro and torch hold once per process, and the modules that a program runs."""

__all__: list[str] = []
