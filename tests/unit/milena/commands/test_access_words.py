"""Grants and entries as people write them: what they stand for, and what is said of those that are wrong."""

import re

import pytest

from milena.cluster.access_views import AclEntry, AclFilter, TokenGrant
from milena.commands.access.output import grant_text
from milena.commands.access.words import AclWords, parse_grant, parse_operations, parse_principal
from milena.model.access import OPERATIONS_OF, Operation, ResourceType


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("READ:TOPIC:orders", ("TOPIC", "LITERAL", "orders", ("READ",))),
        ("READ,WRITE:TOPIC:orders-*", ("TOPIC", "PREFIXED", "orders-", ("READ", "WRITE"))),
        ("READ,READ:GROUP:*", ("GROUP", "LITERAL", "*", ("READ",))),
        ("read, describe:group:a:b*", ("GROUP", "PREFIXED", "a:b", ("READ", "DESCRIBE"))),
        ("WRITE:transactional-id:x", ("TRANSACTIONAL_ID", "LITERAL", "x", ("WRITE",))),
        ("DESCRIBE:CLUSTER", ("CLUSTER", "LITERAL", "kafka-cluster", ("DESCRIBE",))),
        ("ALTER:CLUSTER:kafka-cluster", ("CLUSTER", "LITERAL", "kafka-cluster", ("ALTER",))),
    ],
)
def test_a_grant(text, expected):
    kind, pattern, name, operations = expected
    found = parse_grant(text)
    assert found == TokenGrant(
        resource_type=kind, pattern_type=pattern, name=name, operations=operations
    )
    assert parse_grant(grant_text(found)) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("READ", "'READ' is not OPERATIONS:TYPE:NAME, as in READ,WRITE:TOPIC:orders"),
        ("", "is not OPERATIONS:TYPE:NAME"),
        ("REED:TOPIC:x", "'REED' is not a valid operation: ALL, READ, WRITE"),
        ("READ,:TOPIC:x", "'' is not a valid operation"),
        ("READ:TOPICS:x", "'TOPICS' is not a valid type: TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID"),
        ("READ:TOPIC", "say which TOPIC, or * for all: READ:TOPIC:NAME"),
        ("READ:TOPIC:", "say which TOPIC"),
        ("WRITE:GROUP:x", "WRITE is not an operation on a GROUP: ALL, READ, DELETE, DESCRIBE"),
        ("ALTER:CLUSTER:c1", "the cluster has no name, say ALTER:CLUSTER"),
    ],
)
def test_a_grant_that_is_none_is_told_what_to_write(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_grant(text)


def test_every_operation_may_be_granted_where_it_is_one():
    for kind in ResourceType:
        for operation in Operation:
            text = f"{operation}:{kind}" + ("" if kind is ResourceType.CLUSTER else ":x")
            if operation in OPERATIONS_OF[kind]:
                assert parse_grant(text).operations == (operation,)
            else:
                with pytest.raises(ValueError, match="is not an operation on a"):
                    parse_grant(text)


def test_operations_are_in_the_order_in_which_they_are_named():
    assert parse_operations("WRITE,READ,WRITE") == (Operation.WRITE, Operation.READ)


@pytest.mark.parametrize(
    ("text", "said"),
    [("alice", "say User:alice"), ("", "say User:NAME"), ("User:", "is not a principal")],
)
def test_a_principal_says_what_it_is(text, said):
    assert parse_principal("User:*") == "User:*"
    assert parse_principal("Group:ops") == "Group:ops"
    with pytest.raises(ValueError, match=said):
        parse_principal(text)


def said(**more):
    return AclWords(
        **{
            "principal": "User:alice",
            "allowed": [Operation.READ],
            "denied": [],
            "resources": [(ResourceType.TOPIC, "orders")],
            "is_prefixed": False,
            "host": None,
            **more,
        }
    )


def test_each_resource_and_operation_is_an_entry():
    words = said(
        denied=[Operation.DELETE],
        resources=[(ResourceType.TOPIC, "a"), (ResourceType.GROUP, "b")],
        is_prefixed=True,
        host="10.0.0.1",
    )

    def entry(kind, name, operation, permission):
        return AclEntry(
            principal="User:alice",
            resource_type=kind,
            resource_name=name,
            operation=operation,
            permission=permission,
            pattern_type="PREFIXED",
            host="10.0.0.1",
        )

    assert words.entries() == [
        entry("TOPIC", "a", "READ", "ALLOW"),
        entry("TOPIC", "a", "DELETE", "DENY"),
        entry("GROUP", "b", "READ", "ALLOW"),
        entry("GROUP", "b", "DELETE", "DENY"),
    ]


def test_the_cluster_is_no_prefix_beside_names_that_are():
    resources = [(ResourceType.TOPIC, "a"), (ResourceType.CLUSTER, "kafka-cluster")]
    words = said(allowed=[Operation.ALTER], resources=resources, is_prefixed=True)
    assert [e.pattern_type for e in words.entries()] == ["PREFIXED", "LITERAL"]
    assert [e.pattern_type for e in words.filters()] == ["PREFIXED", "LITERAL"]


def test_filters_find_what_the_same_words_add_and_nothing_else():
    for is_prefixed in (False, True):
        words = said(is_prefixed=is_prefixed, host="10.0.0.1")
        (entry,), (wanted,) = words.entries(), words.filters()
        assert wanted.params() == {name: getattr(entry, name) for name in wanted.params()}
        assert len(wanted.params()) == 7


def test_what_is_not_said_is_any():
    nothing = {"principal": None, "allowed": [], "resources": []}
    assert said(**nothing).filters() == [AclFilter()]
    assert AclFilter().params() == {}
    assert said(**nothing, is_prefixed=True).filters() == [AclFilter(pattern_type="PREFIXED")]
    assert said(allowed=[], resources=[]).filters() == [AclFilter(principal="User:alice")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"principal": None}, "say who"),
        ({"allowed": []}, "say what"),
        ({"resources": []}, "say of what"),
        ({"resources": [(ResourceType.TOPIC, "orders-*")]}, "say orders- --prefixed"),
        ({"resources": [(ResourceType.TOPIC, "")]}, r"\* is every name"),
        (
            {"resources": [(ResourceType.TOPIC, "*")], "is_prefixed": True},
            "leave out --prefixed",
        ),
        (
            {"resources": [(ResourceType.CLUSTER, "kafka-cluster")], "is_prefixed": True},
            "no other names",
        ),
        ({"resources": [(ResourceType.CLUSTER, "kafka-cluster")]}, "READ is not an operation on a"),
    ],
)
def test_words_that_make_no_entry_are_told(words, told):
    with pytest.raises(ValueError, match=told):
        said(**words).entries()
