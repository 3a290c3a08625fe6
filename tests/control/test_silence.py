"""Who is taken for hung, and who is not because everything was late."""

from stages.control.silence import HUNG_S, Silence


def watch(seconds: int, silence: Silence, begin: int, **dead: int) -> list[tuple[int, str]]:
    """Look once a second at three processes; `dead` says since when one does not beat."""
    found = []
    for now in range(begin, begin + seconds):
        heard = {name: float(min(now, dead.get(name, now))) for name in ("a", "b", "c")}
        found += [(now, name) for name in silence.hung(float(now), True, heard)]
    return found


def test_one_that_is_silent_for_long_while_others_beat_hangs() -> None:
    assert watch(20, Silence(0), 0, b=2)[0] == (2 + HUNG_S, "b")


def test_two_that_hang_together_are_both_found() -> None:
    assert {name for _, name in watch(20, Silence(0), 0, a=0, b=2)} == {"a", "b"}


def test_silence_of_all_is_nobody_s_fault() -> None:
    assert watch(100, Silence(0), 0, a=0, b=0, c=0) == []


def test_the_only_process_is_never_blamed() -> None:
    silence = Silence(0)
    assert [silence.hung(float(now), True, {"a": 0.0}) for now in range(100)] == [[]] * 100


def test_a_stall_of_control_itself_starts_the_count_afresh() -> None:
    silence = Silence(0)
    assert watch(10, silence, 0, b=0) == []
    assert watch(14, silence, 40, b=0) == [], "30 s of a suspended machine do not count"
    assert watch(2, silence, 54, b=0) == [(55, "b")]


def test_silence_while_the_bus_is_away_does_not_count() -> None:
    silence = Silence(0)
    for now in range(60):
        assert silence.hung(float(now), False, {"a": float(now), "b": 0.0}) == []
    assert watch(14, silence, 60, b=0) == []
