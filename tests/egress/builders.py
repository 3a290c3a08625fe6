"""Small requests, items and texts for egress tests."""

from collections.abc import Sequence

from contracts.client import Priority, Sampling
from contracts.frames import TokenItem
from contracts.internal import AdmitReply, Door, Stamps, Work
from contracts.topology import Topology
from tests.support.topologies import free_port

NOW = 1_000_000.0
FAR = 2**52


class Letters:
    """A detokenizer whose token 65 is "A"; ids from 256 on are halves of a character."""

    def __init__(self) -> None:
        self._half = ""

    def push(self, ids: Sequence[int]) -> str:
        """Two halves make one "é"."""
        text = ""
        for each in ids:
            if each < 256:
                text += chr(each)
            elif self._half:
                text, self._half = text + "é", ""
            else:
                self._half = "\N{REPLACEMENT CHARACTER}"
        return text

    def flush(self) -> str:
        """An unfinished character."""
        half, self._half = self._half, ""
        return half


def ids_of(text: str) -> list[int]:
    """Token ids of ASCII text, one a letter."""
    return [ord(letter) for letter in text]


def make_terms(
    request_id: str = "r1",
    *,
    stop: Sequence[str] = (),
    token_ids: bool = False,
    deadline_ms: int = FAR,
    door: Door = "grpc",
    tenant: str = "demo",
    egress: str = "egress-0-aaaa",
    received: float = NOW,
    resume_window_ms: int = 0,
    key_id: str | None = None,
) -> AdmitReply:
    """What admission answers."""
    stamps = Stamps(
        received=received, ingress=received + 1, routing=received + 2, stored=received + 4
    )
    work = Work(
        request_id=request_id,
        tenant=tenant,
        egress=egress,
        door=door,
        route="default",
        model="letters",
        model_named=False,
        pool="small",
        reason="route default",
        prompt_ids=[],
        max_tokens=100,
        sampling=Sampling(seed=1),
        stop=list(stop),
        token_ids=token_ids,
        priority=Priority.NORMAL,
        deadline_ms=deadline_ms,
        generation=3,
        metadata={"team": "a"},
        stamps=stamps,
        resume_window_ms=resume_window_ms,
        key_id=key_id,
    )
    return AdmitReply(work=work, prompt_tokens=7, position=0)


def make_item(
    text: str | list[int],
    offset: int,
    *,
    request_id: str = "r1",
    attempt: int = 1,
    finish: str | None = None,
    error: str | None = None,
    us: int = 0,
) -> TokenItem:
    """An executor's tokens."""
    ids = ids_of(text) if isinstance(text, str) else text
    return TokenItem(request_id, attempt, offset, ids, us, 2, NOW + 6, finish=finish, error=error)


def make_topology(grpc: str = "127.0.0.1:7070", buffer_chunks: int = 1024) -> Topology:
    """One pool at 3.6 USD an hour: a tenth of a cent a second; HTTP on a free port."""
    while (http := f"127.0.0.1:{free_port()}") == grpc:
        pass  # both doors share ports with other processes: nothing would complain
    return Topology.model_validate(
        {
            "version": 1,
            "models": {"letters": {"source": "letters"}},
            "pools": {"small": {"model": "letters", "price": {"accelerator_hour": 3.6}}},
            "routes": [{"pool": "small"}],
            "tenants": {"demo": {"keys": ["sha256:" + "0" * 64]}},
            "stages": {"egress": {"grpc": grpc, "http": http, "buffer_chunks": buffer_chunks}},
        }
    )
