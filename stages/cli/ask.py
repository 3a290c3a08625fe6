"""`headrace ask`: one question through one of the doors, the answer streamed to the terminal."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError
from rich.console import Console

from contracts.client import (
    Accepted,
    ChatRequest,
    Chunk,
    Complete,
    FinishReason,
    GenerateRequest,
    Message,
    Priority,
    Queued,
    Refused,
)
from contracts.errors import ErrorInfo
from stages.cli.common import FAILED, NOT_RUNNING, OK, JsonOption, fail, print_json
from stages.cli.journey import journey
from stages.cli.rig import KEY, TENANT
from stages.cli.rows import money
from stages.runtime.client import Answer, CallerError, CannotConnect, GrpcCaller, NatsCaller

USAGE: Final = 2
INTERRUPTED: Final = 130  # as shells say for Ctrl-C
Connect = Coroutine[Any, Any, NatsCaller | GrpcCaller]
Call = Callable[[NatsCaller | GrpcCaller], AsyncGenerator[Answer, None]]


class Door(StrEnum):
    """How the question travels."""

    GRPC = "grpc"
    NATS = "nats"


Question = Annotated[
    str | None, typer.Argument(help="What to ask; - reads it from stdin.", show_default=False)
]
DoorOption = Annotated[Door, typer.Option(help="Which door to use.")]
Model = Annotated[str | None, typer.Option(help="A model of the topology.")]
System = Annotated[str | None, typer.Option(help="A system message before it.")]
MaxTokens = Annotated[int | None, typer.Option(help="Answer limit, in tokens.")]
Temperature = Annotated[float | None, typer.Option(help="0 = always the likeliest.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same answer.")]
PriorityOption = Annotated[Priority | None, typer.Option(help="Order of service.")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; repeatable.")]
Key = Annotated[
    str, typer.Option(envvar="HEADRACE_API_KEY", help="API key.", show_default="the demo key")
]
Tenant = Annotated[str | None, typer.Option(help="Tenant of the key.", show_default=TENANT)]
Url = Annotated[str, typer.Option(help="NATS server.")]
Address = Annotated[str, typer.Option(help="gRPC server.")]
Raw = Annotated[bool, typer.Option("--generate", help="Continue the text instead of chatting.")]
Resume = Annotated[
    str | None,
    typer.Option(metavar="REQUEST[:OFFSET]", help="Go on reading a request after OFFSET tokens."),
]
Journey = Annotated[
    bool, typer.Option("--show-journey", help="Also print the ms spent in each stage.")
]


@dataclass
class Outcome:
    """What has come so far."""

    request_id: str | None = None
    offset: int = 0  # to resume with
    pieces: list[str] = field(default_factory=list)
    last: Complete | Refused | None = None
    interrupted: bool = False


def ask(
    question: Question = None,
    door: DoorOption = Door.GRPC,
    model: Model = None,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    stop: Stop = None,
    priority: PriorityOption = None,
    key: Key = KEY,
    tenant: Tenant = None,
    url: Url = "nats://127.0.0.1:4222",
    address: Address = "127.0.0.1:7070",
    generate: Raw = False,
    resume: Resume = None,
    as_json: JsonOption = False,
    show_journey: Journey = False,
) -> None:
    """Ask a question and stream the answer to stdout; figures go to stderr. Ctrl-C cancels it.

    With --json stdout is one document: the terminal answer, with the whole text. An answer that breaks
    off (a process was killed) is resumed by itself; --resume reads one of another call, up to 5
    minutes after its end.

    Exit codes: 0 answered, 1 refused or failed, 2 wrong usage, 3 nothing runs there, 130 Ctrl-C.
    """
    options = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "stop": stop or None,
        "priority": priority,
    }
    call = _call(question, resume, system, options, generate=generate)
    connect: Connect = (
        NatsCaller.connect(url, tenant or TENANT, key)
        if door is Door.NATS
        else GrpcCaller.connect(address, key, tenant)
    )
    outcome = _asked(connect, call, as_json=as_json)
    _report(outcome, as_json=as_json, show_journey=show_journey)
    raise typer.Exit(_exit_code(outcome))


def _call(
    question: str | None,
    resume: str | None,
    system: str | None,
    options: dict[str, Any],
    *,
    generate: bool,
) -> Call:
    if (question is None) == (resume is None):
        typer.echo("give a question, or --resume REQUEST[:OFFSET], not both", err=True)
        raise typer.Exit(USAGE)
    if resume is not None:
        return _resuming(resume)
    text = _utf8(sys.stdin.read() if question == "-" else question or "")
    return _asking(_request(text, system, options, generate=generate))


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        typer.echo(f"question: not UTF-8 at character {error.start}; write it as UTF-8", err=True)
        raise typer.Exit(USAGE) from None
    return text


def _resuming(resume: str) -> Call:
    request_id, _, offset = resume.partition(":")
    if not request_id or not (offset or "0").isdecimal():
        typer.echo(f"--resume: {resume!r} is not REQUEST[:OFFSET], OFFSET in tokens", err=True)
        raise typer.Exit(USAGE)
    return lambda caller: caller.resume(request_id, int(offset or 0))


def _asking(request: GenerateRequest | ChatRequest) -> Call:
    if isinstance(request, GenerateRequest):
        return lambda caller: caller.generate(request)
    return lambda caller: caller.chat(request)


def _asked(connect: Connect, call: Call, *, as_json: bool) -> Outcome:
    outcome = Outcome()
    try:
        asyncio.run(_run(connect, call, outcome, quiet=as_json))
    except CannotConnect as error:
        message = f"{error}. Start the pipeline with: headrace up"
        raise fail(message, as_json, NOT_RUNNING) from None
    except CallerError as error:
        hint = outcome.request_id and f"; go on with --resume {outcome.request_id}:{outcome.offset}"
        raise fail(f"{error}{hint or ''}", as_json) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        outcome.interrupted = True
    return outcome


def _request(
    text: str, system: str | None, options: dict[str, Any], *, generate: bool
) -> GenerateRequest | ChatRequest:
    given = {name: value for name, value in options.items() if value is not None}
    try:
        if generate:
            return GenerateRequest(prompt=text, **given)
        before = [Message(role="system", content=system)] if system is not None else []
        return ChatRequest(messages=[*before, Message(role="user", content=text)], **given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        typer.echo(f"{where}: {first['msg']} (given: {first['input']!r:.80})", err=True)
        raise typer.Exit(USAGE) from None


async def _run(connect: Connect, call: Call, outcome: Outcome, *, quiet: bool) -> None:
    """Fill `outcome`."""
    async with await connect as caller:
        main = asyncio.current_task()
        assert main is not None
        tasks: list[asyncio.Task[Any]] = []

        def interrupt() -> None:
            # First ask the service to end it, so that the usage is shown; then just leave.
            if outcome.request_id is None or outcome.interrupted:
                main.cancel()
            else:
                tasks.append(asyncio.ensure_future(caller.cancel(outcome.request_id)))
            outcome.interrupted = True

        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
        try:
            async with contextlib.aclosing(call(caller)) as answers:
                async for answer in answers:
                    _take(answer, outcome, quiet=quiet)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _take(answer: Answer, outcome: Outcome, *, quiet: bool) -> None:
    match answer:
        case Accepted():
            outcome.request_id = answer.request_id
        case Queued() if not quiet and not outcome.pieces:
            Console(stderr=True).print(f"waiting behind {answer.position}", style="dim")
        case Chunk():
            outcome.offset = answer.next_offset
            outcome.pieces.append(answer.text)
            if not quiet:
                sys.stdout.write(answer.text)
                sys.stdout.flush()
        case Complete() | Refused():
            outcome.last = answer


def _report(outcome: Outcome, *, as_json: bool, show_journey: bool) -> None:
    last = outcome.last
    if outcome.pieces and not as_json:
        typer.echo()
    if last is None:
        return
    if as_json:
        text = {"text": "".join(outcome.pieces)} if isinstance(last, Complete) else {}
        print_json({**last.model_dump(mode="json", exclude_none=True), **text})
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if isinstance(last, Complete) and not as_json:
        console.print(_footer(last), style="dim", markup=False)
        if show_journey:
            console.print(journey(last.timings))
    if last.error is not None:
        typer.echo(_error_line(last.error, refused=isinstance(last, Refused)), err=True)


def _footer(last: Complete) -> str:
    usage, timings = last.usage, last.timings
    parts = [
        f"{usage.prompt_tokens} tokens in, {usage.completion_tokens} out",
        f"TTFT {timings.ttft_ms:,.0f} ms" if timings.ttft_ms is not None else "",
        f"TPOT {timings.tpot_ms:,.1f} ms" if timings.tpot_ms is not None else "",
        f"{money(last.cost.amount)} {last.cost.currency}",
        f"pool {last.decision.pool} ({last.decision.reason})",
        last.finish_reason.value,
    ]
    return " · ".join(part for part in parts if part)


def _error_line(error: ErrorInfo, *, refused: bool) -> str:
    where = f" ({error.field})" if error.field is not None else ""
    again = f"; try again in {error.retry_after_s:g} s" if error.retry_after_s is not None else ""
    said = "" if "again" in error.message else again
    return f"{'refused' if refused else 'failed'}: {error.code.value}{where}: {error.message}{said}"


def _exit_code(outcome: Outcome) -> int:
    if outcome.interrupted:
        return INTERRUPTED
    done = isinstance(outcome.last, Complete) and outcome.last.finish_reason in (
        FinishReason.STOP,
        FinishReason.LENGTH,
    )
    return OK if done else FAILED
