"""Draws without a guide: Langevin dynamics, Hamiltonian Monte Carlo, Laplace."""

__all__: list[str] = []
