"""The bus connection on a real nats-server that is killed and comes back."""

from pathlib import Path

from nats.aio.msg import Msg

from stages.runtime.bus import Bus
from tests.support.nats import NatsServer
from tests.support.waiting import eventually


async def test_what_the_server_answers_right_after_a_reconnection_is_known_to_be_early(
    tmp_path: Path,
) -> None:
    """A message that waited for the connection, to somebody who is not back yet."""
    server = NatsServer(tmp_path)
    bus = await Bus.connect(server.address, "test")
    held: list[float] = []

    def unheard(_: Msg) -> None:
        held.append(bus.connected_for_s())

    try:
        assert bus.connected_for_s() > 60
        await bus.listen("unheard", unheard)
        await bus.flush()
        server.kill()
        await eventually(lambda: not bus.client.is_connected)
        await bus.client.publish("inbox", b"", reply="unheard")
        server = NatsServer(tmp_path, int(server.address.url.rpartition(":")[2]))
        await eventually(lambda: held)
        assert held[0] < 5
        await eventually(lambda: bus.connected_for_s() > 0)
        assert bus.connected_for_s() < 60
    finally:
        await bus.client.close()
        server.stop()
