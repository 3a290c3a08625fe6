"""What the processes are made of, and that none of them is missing."""

from pathlib import Path

from stages.cli.rig import Rig

STAGES = {"ingress", "routing", "queueing", "egress", "metering"}


def loaded(pid: int) -> str:
    """The files a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text()


def test_only_executors_have_torch_in_memory(rig: Rig) -> None:
    status = rig.status()
    assert {one["stage"] for one in status["stages"]} == STAGES
    for one in status["stages"]:
        assert "libtorch" not in loaded(one["pid"]), one["instance"]
    assert all("libtorch" in loaded(one["pid"]) for one in status["executors"])
    assert "libtorch" not in loaded(status["pid"])


def test_status_is_healthy_and_names_every_process(rig: Rig) -> None:
    status = rig.status()
    assert status["healthy"], status["problems"]
    assert status["conservation"]["balanced"]
    pids = [one["pid"] for one in (*status["stages"], *status["executors"], status["bus"])]
    assert len(set(pids)) == len(pids) == 8


def test_no_secret_is_in_a_command_line_or_an_environment(rig: Rig) -> None:
    password = rig.internal_bus().password
    status = rig.status()
    for one in (*status["stages"], *status["executors"], status["bus"]):
        for name in ("cmdline", "environ"):
            assert password not in Path(f"/proc/{one['pid']}/{name}").read_text()
    for file in (rig.state / "bus.json", *rig.state.glob("**/*.conf")):
        assert file.stat().st_mode & 0o077 == 0, file
