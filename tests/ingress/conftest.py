"""Fixtures of ingress over a real bus."""

from tests.ingress.neighbours import acme, ingress, neighbours

__all__ = ["acme", "ingress", "neighbours"]
