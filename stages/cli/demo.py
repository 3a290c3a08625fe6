"""`headrace demo`: the whole service once, on a private pipeline: ask, journey, usage row, cost."""

import asyncio
import contextlib
import json
import time
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from contracts.client import Accepted, ChatRequest, Chunk, Complete, Message, Refused
from stages.cli.journey import journey
from stages.cli.models import pull_command
from stages.cli.rig import KEY, MODEL, Rig, RigError, stopped_pipeline
from stages.cli.rows import shown
from stages.cli.usage import By, costs
from stages.runtime.client import CallerError, GrpcCaller

QUESTION: Final = "What does a water wheel do? Answer in two sentences."
ROW: Final = (
    "SELECT tenant, pool, model, executor, prompt_tokens, completion_tokens, ttft_ms, tpot_ms, "
    "e2e_ms, accelerator_s, amount, currency FROM requests WHERE request_id = '{}'"
)


class DemoError(Exception):
    """The demo could not show what it promises; the message says why."""


def demo(
    question: Annotated[str, typer.Argument(help="What to ask.")] = QUESTION,
    max_tokens: Annotated[int, typer.Option(min=1, help="Answer limit, in tokens.")] = 96,
) -> None:
    """Start a private pipeline, ask, show the request's journey, usage row and cost, stop all.

    Needs no running pipeline and disturbs none: ports are free ones, files temporary.
    """
    console = Console()
    begin = time.perf_counter()
    console.rule("model", align="left")
    pull_command(MODEL)
    try:
        with stopped_pipeline() as rig:
            _show(rig, question, max_tokens, console)
        console.print(f"[dim]stopped; {time.perf_counter() - begin:.1f} s in all[/dim]")
    except (RigError, CallerError, DemoError) as error:
        typer.echo(f"demo: {error}", err=True)
        raise typer.Exit(1) from None


def _show(rig: Rig, question: str, max_tokens: int, console: Console) -> None:
    begin = time.perf_counter()
    with console.status("starting nats-server, every stage and one executor …"):
        rig.up()
    console.rule(f"ready after {time.perf_counter() - begin:.1f} s", align="left")
    console.print(question, style="bold", markup=False)
    complete = asyncio.run(_ask(rig, question, max_tokens))
    console.rule("the request's journey", align="left")
    console.print(journey(complete.timings), _summary(complete))
    console.rule("its usage row, from DuckDB", align="left")
    console.print(_usage_row(rig, complete.request_id))
    console.rule("what it cost", align="left")
    costs(By.TENANT, None, rig.state)
    with console.status("stopping …"):
        rig.down()


async def _ask(rig: Rig, question: str, max_tokens: int) -> Complete:
    request = ChatRequest(
        messages=[Message(role="user", content=question)], max_tokens=max_tokens, temperature=0.0
    )
    async with (
        await GrpcCaller.connect(rig.grpc_address, KEY) as caller,
        contextlib.aclosing(caller.chat(request)) as answers,
    ):
        async for answer in answers:
            match answer:
                case Chunk():
                    typer.echo(answer.text, nl=False)
                case Refused():
                    raise DemoError(f"the request was refused: {answer.error.message}")
                case Complete():
                    typer.echo()
                    return answer
                case Accepted() | _:
                    continue
    raise DemoError("the stream ended without a terminal")


def _summary(complete: Complete) -> str:
    usage, decision = complete.usage, complete.decision
    return (
        f"{usage.prompt_tokens} tokens in, {usage.completion_tokens} out, ended by "
        f"{complete.finish_reason.value}; pool {decision.pool} ({decision.reason})"
    )


def _usage_row(rig: Rig, request_id: str) -> Table:
    [row] = json.loads(rig.headrace("sql", ROW.format(request_id), "--json"))
    table = Table("column", "value", show_edge=False)
    for name, value in row.items():
        table.add_row(name, shown(value))
    return table
