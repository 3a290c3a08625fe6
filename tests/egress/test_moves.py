"""A request that waits goes to another pool: the caller and the bill hear of the pool it ran in."""

from contracts import subjects
from contracts.internal import Done, Settled
from contracts.sessions import SettleSession
from tests.egress.builders import make_item, make_terms
from tests.egress.conftest import EGRESS, World
from tests.egress.test_nats_door import Inbox, opened


def moved(request_id: str, pool: str, hop: int) -> Settled:
    """As the new pool's queueing owner tells it."""
    terms = make_terms(request_id, door="nats")
    work = terms.work.model_copy(update={"pool": pool, "reason": "moved", "hop": hop})
    return Settled(request_id=request_id, admitted=terms.model_copy(update={"work": work}))


async def tell(world: World, settled: Settled) -> Done:
    call = SettleSession(settled=settled)
    return await world.bus.request(subjects.session(EGRESS), call, Done, 20)


async def test_decision_and_receipt_name_the_pool_of_the_highest_hop(world: World) -> None:
    inbox = await opened(world)
    for pool, hop in (("large", 2), ("middle", 1)):  # told out of order
        assert (await tell(world, moved("r1", pool, hop))).ok
    await world.send(make_item("Hi", 0, finish="stop"))
    while (last := await inbox.next())["type"] != "complete":
        pass
    assert (last["decision"]["pool"], last["decision"]["reason"]) == ("large", "moved")
    [receipt] = await world.receipts(1)
    assert (receipt.pool, receipt.reason) == ("large", "moved")


async def test_an_egress_that_does_not_hold_it_harms_nothing(world: World) -> None:
    """It may have moved to another egress meanwhile: an orphan notice would end it there."""
    assert not (await tell(world, moved("elsewhere", "large", 1))).ok
    await opened(world, "mark")
    assert world.notices == []


async def test_a_move_may_overtake_the_first_terms(world: World) -> None:
    inbox = Inbox(world)
    await inbox.listen()
    await world.open("r1", inbox.subject)
    assert (await tell(world, moved("r1", "large", 1))).ok
    assert (await inbox.next())["decision"]["pool"] == "large"
    await world.settle(Settled(request_id="r1", admitted=make_terms("r1", door="nats")))  # late
    await world.send(make_item("Hi", 0, finish="stop"))
    while (last := await inbox.next())["type"] != "complete":
        assert last["type"] == "chunk"
    assert last["decision"]["pool"] == "large"
