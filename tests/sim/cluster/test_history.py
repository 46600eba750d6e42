"""The check of clients' histories finds each kind of fault."""

from tests.sim.cluster.history import History, Write


def judged(*writes: Write, found: dict[int, str]) -> list[str]:
    history = History({write.value: write for write in writes})
    history.judge({0: found})
    return [problem.partition(":")[0] for problem in history.problems]


def test_what_is_as_it_should_be() -> None:
    doubtful = Write("b", 0)
    assert judged(Write("a", 0, offset=0), doubtful, found={0: "a"}) == []
    assert judged(Write("a", 0, offset=0), doubtful, found={0: "a", 1: "b"}) == []


def test_lost_write() -> None:
    assert judged(Write("a", 0, offset=0), found={}) == ["lost-write"]


def test_acknowledged_elsewhere() -> None:
    writes = Write("a", 0, offset=1), Write("b", 0, offset=0)
    assert judged(*writes, found={0: "a", 1: "b"}) == ["lost-write", "lost-write"]


def test_duplicate() -> None:
    assert judged(Write("a", 0, offset=0), found={0: "a", 1: "a"}) == ["duplicate"]


def test_refused_but_there() -> None:
    assert judged(Write("a", 0, is_refused=True), found={0: "a"}) == ["refused-but-there"]


def test_unsent() -> None:
    assert judged(found={0: "x"}) == ["unsent"]
    assert judged(Write("a", 1), found={0: "a"}) == ["unsent"]


def test_reordered() -> None:
    writes = [Write(value, 0, sequence=n, producer=7) for n, value in enumerate("ab")]
    assert judged(*writes, found={0: "b", 1: "a"}) == ["reordered"]
