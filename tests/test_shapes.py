"""A shape is declared once: no two record classes share three quarters of their fields, but for a list with reasons."""

import ast
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from tests.test_tidy import PACKAGES

ROOT = Path(__file__).parent.parent
FIELDS_MIN = 4
"""Smaller records share names such as topic and partition by chance."""

CLIENT = "the client reads words and fields of later releases, so its types are wider; it imports no server"
STORED = "a command, a stored row or a message between nodes keeps its fields; the other class may change"
MEANING = "the same names, with another meaning, type or default"
HOT = "made millions of times a second, so it is a flat tuple of its own"

ALLOWED: dict[frozenset[str], str] = {
    frozenset(pair.split()): reason
    for reason, pairs in {
        CLIENT: (
            "RequestedMove PlannedReassignment",
            "JoiningReplica AddedReplica",
            "GroupMember MemberDescription",
            "GroupSummary GroupHead",
            "TokenGrant Grant",
            "AclEntry Acl",
            "AclFilter Acl",
            "AclEntry AclSelection",
            "AclFilter AclSelection",
            "Receipt ProduceReceipt",
            "TopicView CreateTopic",
            "BeatAnswer HeartbeatAnswer",
        ),
        STORED: (
            "OffsetToCommit OffsetCommit",
            "OffsetToCommit OffsetRow",
            "OffsetCommit OffsetRow",
            "Extent ExtentRow",
            "TransactionExtent ExtentRow",
            "DeliveredRecords DeliveryRow",
            "ClassicGroup _ClassicRow",
            "Token CreateToken",
            "FenceBroker DrainBroker",
            "DeleteGroup DeleteOffsets",
            "FinishedMarker _EndingRow",
            "Extent TransactionExtent",
            "AclSelection Acl",
        ),
        MEANING: (
            "Receipt Doubt",
            "Receipt Seek",
            "HeldRow FinishedMarker",
            "RefusedBatch FinishedMarker",
            "RefusedBatch _EndingRow",
            "TransactionWrite WrittenExtent",
            "RawAnswer _Said",
            "ClusterTarget Profile",
            "AclEntry AclFilter",
            "GroupOffsets MemberOffsets",
            "ConsumerKeywords ConsumerOptions",
            "ProducerKeywords ProducerOptions",
        ),
        HOT: ("ConsumedRecord DecodedRecord", "Records Slice"),
    }.items()
    for pair in pairs
}


def test_no_two_records_have_the_same_shape():
    alike = {
        frozenset((a, b))
        for (a, first), (b, second) in combinations(_records(), 2)
        if _are_alike(first, second)
    }
    assert alike == set(ALLOWED), (
        "declare the shape once, or give the reason for two; remove reasons without a pair"
    )


def _are_alike(first: set[str], second: set[str]) -> bool:
    return len(first & second) >= 0.75 * max(len(first), len(second))


def _records() -> Iterator[tuple[str, set[str]]]:
    """Yield the name and the own fields of each record class. Inherited fields are declared once, so they are fine."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and _is_record(node):
                    names = {
                        f.target.id
                        for f in node.body
                        if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
                    }
                    if len(names) >= FIELDS_MIN:
                        yield node.name, names


def _is_record(node: ast.ClassDef) -> bool:
    kinds = {ast.unparse(kind).partition("(")[0] for kind in (*node.decorator_list, *node.bases)}
    return bool(kinds & {"dataclass", "NamedTuple", "TypedDict", "Struct", "msgspec.Struct"})
