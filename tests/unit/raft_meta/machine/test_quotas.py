"""Quotas in the state: bounds and format; what commands do is in the golden scripts."""

import msgpack  # type: ignore[import-untyped]  # ships no type hints
import pytest

from milena.model.errors import AccessLimitError
from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.access import quotas
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Quota
from tests.support.machine.images import Cluster


def bound(user: str, client_id: str = "", **limits: int | None) -> c.AlterQuota:
    return c.AlterQuota(user=user, client_id=client_id, changes=tuple(limits.items()))


def test_quotas_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "QUOTAS_MAX", 1)
    cluster = Cluster(level=quotas.LEVEL)
    assert cluster.do(bound("ann", request_rate=1)).error is None
    assert isinstance(cluster.do(bound("bob", request_rate=1)).error, AccessLimitError)
    assert cluster.do(bound("ann", request_rate=2, stream_count=1)).error is None
    assert cluster.do(bound("ann", request_rate=None, stream_count=None)).error is None
    assert cluster.do(bound("bob", request_rate=1)).error is None


def test_the_format_of_quotas_is_a_promise() -> None:
    cluster = Cluster(level=quotas.LEVEL)
    cluster.do(bound("ann", "app", request_rate=5, producer_byte_rate=7))
    cluster.do(bound("*", stream_count=1))
    image = cluster.image
    sections = dict(
        msgpack.unpackb(chunk[8:], use_list=True) for chunk in list(codec.encode_image(image))[1:]
    )
    assert sections[16] == [
        ["*", "", [["stream_count", 1]]],
        ["ann", "app", [["producer_byte_rate", 7], ["request_rate", 5]]],
    ]
    assert codec.decode_image(codec.encode_image(image)) == image


def test_the_command_is_a_promise() -> None:
    envelope = Cluster(level=quotas.LEVEL).envelope(bound("ann", request_rate=5, stream_count=None))
    row = msgpack.unpackb(codec.encode_envelope(envelope))
    assert row[5:] == [35, ["ann", "", [["request_rate", 5], ["stream_count", None]]]]
    assert codec.decode_envelope(codec.encode_envelope(envelope)) == envelope


def test_an_image_without_them_has_the_bytes_of_the_level_before() -> None:
    before, now = Cluster(level=7).image, Cluster(level=8).image
    bytes_of = [
        b"".join(codec.encode_image(image)) for image in (before, replace(now, feature_level=7))
    ]
    assert bytes_of[0] == bytes_of[1]


def test_a_quota_of_another_or_of_nothing_is_found_in_an_image() -> None:
    image = Cluster(level=quotas.LEVEL).image
    for entity, limits in (
        (("bob", ""), (("request_rate", 1),)),
        (("ann", ""), ()),
        (("ann", ""), (("stream_count", 1), ("request_rate", 1))),
    ):
        quota = Quota(user="ann", client_id="", limits=limits)
        broken = replace(image, quotas=image.quotas.set(entity, quota))
        assert invariants.violations(broken)
    fine = Quota(user="ann", client_id="", limits=(("request_rate", 1),))
    with_one = replace(image, quotas=image.quotas.set(("ann", ""), fine))
    assert not invariants.violations(with_one)
    assert invariants.violations(replace(with_one, feature_level=7))
