"""Fixtures that every room's tests may use."""

from tests.support.nats import bus, bus_address, nats_server

__all__ = ["bus", "bus_address", "nats_server"]
