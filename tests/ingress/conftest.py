"""Fixtures of ingress over a real bus."""

from tests.ingress.neighbours import ingress, neighbours

__all__ = ["ingress", "neighbours"]
