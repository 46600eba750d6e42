"""The rights that a request needs. Each endpoint must declare them.

``http_api.access.rights`` checks them when only the path and the credentials of a request were read.
"""

from dataclasses import dataclass

from milena.model.access import Operation, ResourceType


@dataclass(frozen=True, slots=True)
class NeededOperation:
    """An operation on the resource whose name is the path's parameter ``path_name``; empty: on the cluster."""

    operation: Operation
    resource_type: ResourceType
    path_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The rights that an endpoint needs.

    Attributes:
        is_public: anyone may call it, without credentials.
        needs: the operation on the resource in the path; None: no right is needed for the path.
        has_more: the body or the query names resources too; the handler checks the rights to them before it acts.
        is_filtered: the response leaves out resources that the caller may not ``DESCRIBE``.
        is_strict: a caller without the right is refused even in the mode ``optional``, which only logs refusals.
            Endpoints that change access are strict, because the change is still in force when the mode is on again.
    """

    is_public: bool = False
    needs: NeededOperation | None = None
    has_more: bool = False
    is_filtered: bool = False
    is_strict: bool = False

    def __str__(self) -> str:
        words = ["public"] if self.is_public else []
        if self.needs is not None:
            words.append(f"{self.needs.operation} {self.needs.resource_type}")
        if self.has_more:
            words.append("more in the request")
        if self.is_filtered:
            words.append("filtered")
        if self.is_strict:
            words.append("strict")
        return ", ".join(words) or "known"


PUBLIC = Access(is_public=True)
"""Anyone may call, because the response reveals nothing about the cluster."""
KNOWN = Access()
"""Every caller with valid credentials may call."""
IN_REQUEST = Access(has_more=True)
IN_ANSWER = Access(is_filtered=True)
STRICT = Access(has_more=True, is_strict=True)


ALL_TOPICS = "-"
"""Stands for all topics in place of a topic's name in v3 paths. The response is then filtered."""


def on_topic(operation: Operation, *, is_filtered: bool = False) -> Access:
    """Require this operation on the topic in the path. ``is_filtered``: the path may have ``ALL_TOPICS`` instead."""
    needs = NeededOperation(operation, ResourceType.TOPIC, "topic")
    return Access(needs=needs, is_filtered=is_filtered)


def on_group(operation: Operation, *, has_more: bool = False, is_filtered: bool = False) -> Access:
    """Require this operation on the group in the path."""
    needs = NeededOperation(operation, ResourceType.GROUP, "group")
    return Access(needs=needs, has_more=has_more, is_filtered=is_filtered)


def on_cluster(operation: Operation, *, is_strict: bool = False) -> Access:
    """Require this operation on the cluster."""
    return Access(needs=NeededOperation(operation, ResourceType.CLUSTER), is_strict=is_strict)
