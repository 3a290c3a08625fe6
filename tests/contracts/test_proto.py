"""headrace.proto: its stubs are current, and it says what contracts/client.py says."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from pydantic import BaseModel

from contracts import client, errors
from contracts import headrace_pb2 as pb

ROOT = Path(pb.__file__).parents[1]
STUBS = ("headrace_pb2.py", "headrace_pb2_grpc.py", "headrace_pb2.pyi")


def test_committed_stubs_are_current(tmp_path: Path) -> None:
    outs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python", "pyi")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outs, "contracts/headrace.proto"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    for name in STUBS:
        fresh = (tmp_path / "contracts" / name).read_text()
        assert fresh == (ROOT / "contracts" / name).read_text(), f"{name}: run `make proto`"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (client.GenerateRequest, pb.GenerateRequest),
        (client.ChatRequest, pb.ChatRequest),
        (client.Message, pb.Message),
        (client.CancelRequest, pb.CancelRequest),
        (client.CancelReply, pb.CancelReply),
        (client.ModelCard, pb.ModelCard),
        (client.ModelList, pb.ModelList),
        (client.Accepted, pb.Accepted),
        (client.Queued, pb.Queued),
        (client.Chunk, pb.Chunk),
        (client.Complete, pb.Complete),
        (client.Decision, pb.Decision),
        (client.Usage, pb.Usage),
        (client.Cost, pb.Cost),
        (client.Timings, pb.Timings),
        (errors.ErrorInfo, pb.ErrorInfo),
    ],
)
def test_both_schemas_have_the_same_fields(model: type[BaseModel], message: type[Message]) -> None:
    descriptor: Descriptor = message.DESCRIPTOR
    said_by_the_oneof = {"type", "accepted", "queued"}
    assert {field.name for field in descriptor.fields} == set(
        model.model_fields
    ) - said_by_the_oneof


def test_options_that_a_caller_leaves_out_stay_absent() -> None:
    for message in (pb.GenerateRequest, pb.ChatRequest):
        for field in message.DESCRIPTOR.fields:
            assert field.has_presence or field.is_repeated or field.name == "prompt"
