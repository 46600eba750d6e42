"""Which transaction must come before which, and whether that goes round in a circle.

    read by      a transaction's record was read by another, which wrote only then
    before in    a transaction's record stands before another's in a partition
    ended before a transaction was acknowledged before another began

*Read by* and *ended before* put all of one transaction before all of the other. *Before in* compares two records, and
transactions that run side by side may stand in one order here and in the other there: a circle of these alone, G0, is
noted (docs/exactly-once.md allows it), and two of them in a row prove nothing of the first and the third. Every other
circle is impossible where readers get committed records alone: G1c, when one of its steps is a read.

Source: Adya, "Weak Consistency" (1999), 4.2; Kingsbury and Alvaro, "Elle" (VLDB 2020), 4 and 6: time as a chain of
nodes, circles as strongly connected components.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from tests.chaos.history import Outcome, TransactionTried

Graph = defaultdict["Vertex", list["Vertex"]]
Vertex = tuple[str, str | int, int]
"""("transaction", name, 1 if a *before in* led to it), ("place N", run in its log, 0) or ("time", number, 0)."""
Cycle = list[tuple[str, str]]
"""(transaction, what leads from it to the next)."""
Finding = tuple[str, str]
TRANSACTION, TIME = "transaction", "time"
READ_BY, ENDED_BEFORE = "read by", "ended before"


def check_dependencies(
    logs: Mapping[int, Mapping[int, str]], transactions: Sequence[TransactionTried]
) -> Iterator[Finding]:
    """Circles among transactions that are in the logs: ``logs`` has offset → record of each place."""
    owners = {record: one.name for one in transactions for _, record, _ in one.writes}
    runs = {place: list(_runs(log, owners)) for place, log in logs.items()}
    weak: Graph = defaultdict(list)
    _add_orders(weak, runs, is_repeatable=True)
    for cycle in _cycles(weak):
        yield "write-cycle", _told(cycle)
    flow: Graph = defaultdict(list)
    _add_orders(flow, runs, is_repeatable=False)
    _add_reads(flow, transactions, owners)
    circles = list(_cycles(flow))
    if not circles:
        _add_times(flow, transactions)
        circles = list(_cycles(flow))
    for cycle in circles:
        has_read = any(step == READ_BY for _, step in cycle)
        yield "circular-flow" if has_read else "reordered", _told(cycle)


def _runs(log: Mapping[int, str], owners: Mapping[str, str]) -> Iterator[str]:
    """Transactions in the order of their records, neighbours as one."""
    names = (owners[log[offset]] for offset in sorted(log) if log[offset] in owners)
    return (name for name, _ in groupby(names))


def _add_orders(graph: Graph, runs: Mapping[int, Sequence[str]], *, is_repeatable: bool) -> None:
    """Each leads to all that have a later run in a place. ``is_repeatable``: and from there on to the next."""
    for place, names in runs.items():
        first = {name: number for number, name in reversed(list(enumerate(names)))}
        last = {name: number for number, name in enumerate(names)}
        for number in range(len(names)):
            graph[f"place {place}", number, 0].append((f"place {place}", number + 1, 0))
        for name, number in first.items():
            graph[TRANSACTION, name, 0].append((f"place {place}", number + 1, 0))
        for name, number in last.items():
            after = 0 if is_repeatable else 1
            graph[f"place {place}", number, 0].append((TRANSACTION, name, after))


def _add_reads(
    graph: Graph, transactions: Iterable[TransactionTried], owners: Mapping[str, str]
) -> None:
    for one in transactions:
        writers = {owners[record] for _, _, record in one.consumed if record in owners}
        for writer in writers - {one.name}:
            _add_strong(graph, writer, (TRANSACTION, one.name, 0))


def _add_times(graph: Graph, transactions: Iterable[TransactionTried]) -> None:
    every = list(transactions)
    ends = sorted({one.at_s for one in every if one.outcome is Outcome.OK})
    for number in range(len(ends)):
        graph[TIME, number, 0].append((TIME, number + 1, 0))
    for one in every:
        if one.outcome is Outcome.OK:
            _add_strong(graph, one.name, (TIME, bisect_left(ends, one.at_s), 0))
        ended = bisect_left(ends, one.sent_s)
        if ended:
            graph[TIME, ended - 1, 0].append((TRANSACTION, one.name, 0))


def _add_strong(graph: Graph, name: str, target: Vertex) -> None:
    """However one came to this transaction."""
    graph[TRANSACTION, name, 0].append(target)
    graph[TRANSACTION, name, 1].append(target)


def _cycles(graph: Graph) -> Iterator[Cycle]:
    """A short circle of each strongly connected component that has one through two transactions."""
    for component in _components(graph):
        if len(component) == 1:
            continue
        for start in sorted(vertex for vertex in component if vertex[0] == TRANSACTION):
            cycle = _named(_shortest(graph, start, component))
            if len({name for name, _ in cycle}) > 1:
                yield cycle
                break


def _components(graph: Graph) -> Iterator[set[Vertex]]:
    """Strongly connected components, by Tarjan's algorithm without recursion."""
    index: dict[Vertex, int] = {}
    low: dict[Vertex, int] = {}
    path: list[Vertex] = []
    on_path: set[Vertex] = set()
    for root in list(graph):
        work = [(root, iter(graph.get(root, ())))] if root not in index else []
        while work:
            vertex, targets = work[-1]
            if vertex not in index:
                index[vertex] = low[vertex] = len(index)
                path.append(vertex)
                on_path.add(vertex)
            for target in targets:
                if target not in index:
                    work.append((target, iter(graph.get(target, ()))))
                    break
                if target in on_path:
                    low[vertex] = min(low[vertex], index[target])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[vertex])
                if low[vertex] == index[vertex]:
                    component = {path.pop()}
                    while vertex not in component:
                        component.add(path.pop())
                    on_path -= component
                    yield component


def _shortest(graph: Graph, start: Vertex, component: set[Vertex]) -> list[Vertex]:
    """From a vertex back to it, within a component."""
    came_from: dict[Vertex, Vertex] = {}
    queue = deque([start])
    while queue:
        vertex = queue.popleft()
        for target in graph.get(vertex, ()):
            if target == start:
                way = [start, vertex]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1] if len(way) > 2 else [start, start]
            if target in component and target not in came_from:
                came_from[target] = vertex
                queue.append(target)
    return []


def _named(way: Sequence[Vertex]) -> Cycle:
    """The transactions on a way, and what leads from each to the next."""
    at = [number for number, vertex in enumerate(way) if vertex[0] == TRANSACTION]
    cycle = []
    for here, there in pairwise(at):
        between = way[here + 1][0]
        step = {TRANSACTION: READ_BY, TIME: ENDED_BEFORE}.get(between, f"before in {between}")
        assert there > here
        cycle.append((str(way[here][1]), step))
    return cycle


def _told(cycle: Cycle) -> str:
    steps = " ".join(f"{name} -{step}->" for name, step in cycle)
    return f"{steps} {cycle[0][0]}"
