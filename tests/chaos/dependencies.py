"""Find the order that transactions must have had, and cycles in it.

    read by      another transaction read this one's record, and only then wrote
    before in    this transaction's record is before another's in a partition
    ended before this transaction was acknowledged before another one started

*Read by* and *ended before* order whole transactions. *Before in* only orders two records: concurrent transactions may
be in one order in one partition and in the other order in another. A cycle of only *before in* is G0, and is noted
(docs/exactly-once.md allows it). Two such steps in a row prove nothing about the first and the third transaction. Every
other cycle is impossible if readers get only committed records. It is G1c if one of its steps is a read. Source: Adya,
"Weak Consistency" (1999), 4.2; Kingsbury and Alvaro, "Elle" (VLDB 2020), 4 and 6: time as a chain of vertices, cycles
as strongly connected components.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from tests.chaos.history import Outcome, TransactionTried

Graph = defaultdict["Vertex", list["Vertex"]]
Vertex = tuple[str, str | int, int]
"""A vertex: ("transaction", name, 1 if *before in* led to it), ("place N", index in its log, 0) or ("time", N, 0)."""
Cycle = list[tuple[str, str]]
"""A cycle: items of (transaction, the relation that leads to the next one)."""
Finding = tuple[str, str]
TRANSACTION, TIME = "transaction", "time"
READ_BY, ENDED_BEFORE = "read by", "ended before"


def check_dependencies(
    logs: Mapping[int, Mapping[int, str]], transactions: Sequence[TransactionTried]
) -> Iterator[Finding]:
    """Yield the cycles among transactions in the logs; ``logs`` has each place's records by offset."""
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
    """Yield the transactions in the order of their records, without repetitions of neighbours."""
    names = (owners[log[offset]] for offset in sorted(log) if log[offset] in owners)
    return (name for name, _ in groupby(names))


def _add_orders(graph: Graph, runs: Mapping[int, Sequence[str]], *, is_repeatable: bool) -> None:
    """Add edges from each run to all later transactions of its place, and with ``is_repeatable`` on from there."""
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
    """Add edges to a transaction in both states: whatever relation led to it before."""
    graph[TRANSACTION, name, 0].append(target)
    graph[TRANSACTION, name, 1].append(target)


def _cycles(graph: Graph) -> Iterator[Cycle]:
    """Yield a short cycle of each strongly connected component that has two or more transactions in a cycle."""
    for component in _components(graph):
        if len(component) == 1:
            continue
        for start in sorted(vertex for vertex in component if vertex[0] == TRANSACTION):
            cycle = _named(_shortest(graph, start, component))
            if len({name for name, _ in cycle}) > 1:
                yield cycle
                break


def _components(graph: Graph) -> Iterator[set[Vertex]]:
    """Yield the strongly connected components, by Tarjan's algorithm without recursion."""
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
    """Return the shortest way from a vertex back to itself within a component."""
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
    """Return the transactions on a way, and the relation that leads from each to the next."""
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
