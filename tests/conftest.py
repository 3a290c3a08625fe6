"""Fixtures that every room's tests may use."""

from hypothesis import settings

from tests.support.nats import bus, bus_address, nats_server

# A slow or loaded machine is no mistake of the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")

__all__ = ["bus", "bus_address", "nats_server"]
