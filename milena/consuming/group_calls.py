"""The calls of consumer groups: one attempt each, to any node.

Heartbeats and commits are repeatable: if a node stops responding, the next one is tried. ``milena.consuming.group``
decides what a failure means for a member.
"""

import json
from collections.abc import Mapping, Sequence

from milena.cluster.group_views import GroupOffset, group_offsets, partitions_of
from milena.cluster.http import HttpCall, HttpSession, json_of, segment
from milena.consuming.membership import Beat, BeatAnswer
from milena.errors import TargetNotFoundError
from milena.fields import AnswerFields, Json
from milena.records import TopicPartition

BEAT_MARGIN_MS = 5_000
"""Timeout of a heartbeat beyond the time that the coordinator may delay the response, in ms.

It is shorter if the session timeout is short.
"""
BEAT_MARGIN_MS_MIN = 500
COMMIT_TIMEOUT_S = 8.0
"""Timeout of a commit, in seconds. A new coordinator takes over sooner, so that the node can still respond."""


class GroupCalls:
    """Calls to any node of one cluster. They raise the errors of ``milena.errors``."""

    def __init__(self, http: HttpSession) -> None:
        self._http = http

    async def heartbeat(self, group: str, beat: Beat, *, session_ms: int) -> BeatAnswer:
        """Send a heartbeat that joins, stays in or leaves the group.

        Raises:
            MemberUnknownError: the group has removed this member.
            MemberFencedError: another process has taken over the member's instance id.
            StaleMemberError: the member has another epoch.
            AnswerError: the group refuses the settings.
            UnreachableError, NotNowError, UnknownResultError, ServerFailedError: the result is unknown; ask again.
        """
        margin_ms = max(BEAT_MARGIN_MS_MIN, min(BEAT_MARGIN_MS, session_ms // 3))
        call = HttpCall(
            method="POST",
            path=f"{_path(group)}/heartbeat?timeout_ms={beat.wait_ms}",
            body=json.dumps(_beat_json(beat)).encode(),
            timeout_s=(beat.wait_ms + margin_ms) / 1000,
            is_repeatable=True,
        )
        answer = json_of(await self._http.send(call), f"heartbeat of {group}")
        if answer is None and beat.member_epoch < 0:
            return _left(beat)
        fields = AnswerFields(answer, "heartbeat")
        return fields.read(BeatAnswer, assignment=partitions_of(fields, "assignment"))

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        member_id: str | None,
        member_epoch: int | None,
        topic_tags: Mapping[TopicPartition, str],
    ) -> None:
        """Commit all of these offsets, each that of the next record to read, or none.

        ``topic_tags``: the first digits of the ids of the topics that were read, as far as they are known.

        Raises:
            TargetNotFoundError: a topic or partition does not exist, or the topic has another id. Nothing was
                committed.
            MemberFencedError, MemberUnknownError, StaleMemberError: this member may not commit these offsets.
            GroupNotEmptyError: the call names no member, but the group has some.
            UnreachableError, NotNowError, UnknownResultError, ServerFailedError: the result is unknown; commit again.
        """
        listed: list[Json] = []
        for where, offset in sorted(offsets.items()):
            row: dict[str, Json] = {
                "topic": where.topic,
                "partition": where.partition,
                "offset": offset,
            }
            if tag := topic_tags.get(where):
                row["topic_id"] = tag
            listed.append(row)
        body: dict[str, Json] = {"offsets": listed}
        if member_id is not None:
            body["member_id"] = member_id
            body["member_epoch"] = member_epoch
        call = HttpCall(
            method="POST",
            path=f"{_path(group)}/offsets",
            body=json.dumps(body).encode(),
            timeout_s=COMMIT_TIMEOUT_S,
            is_repeatable=True,
        )
        json_of(await self._http.send(call), f"commit of {group}")

    async def committed(
        self, group: str, topics: Sequence[str] | None = None
    ) -> dict[TopicPartition, GroupOffset]:
        """Return the committed offsets of these topics, or of all; empty if the group does not exist."""
        found: dict[TopicPartition, GroupOffset] = {}
        for topic in topics if topics is not None else (None,):
            params = None if topic is None else {"topic": topic}
            try:
                answer = await self._http.get(f"{_path(group)}/offsets", params)
            except TargetNotFoundError:
                continue
            found |= group_offsets(AnswerFields(answer, "offsets"))
        return found


def _path(group: str) -> str:
    return f"/groups/{segment(group)}"


def _beat_json(beat: Beat) -> dict[str, Json]:
    body: dict[str, Json] = {"member_id": beat.member_id, "member_epoch": beat.member_epoch}
    if beat.member_epoch < 0:
        return body
    owned: dict[str, list[Json]] = {}
    for where in sorted(beat.owned):
        owned.setdefault(where.topic, []).append(where.partition)
    body["owned"] = [
        {"topic": topic, "partitions": partitions} for topic, partitions in owned.items()
    ]
    if beat.subscription is None:
        return body
    if beat.subscription.pattern is None:
        body["topics"] = list(beat.subscription.topics)
    else:
        body["pattern"] = beat.subscription.pattern
    body["client_id"] = beat.client_id
    body["assignor"] = beat.assignor
    body["session_timeout_ms"] = beat.session_timeout_ms
    body["rebalance_timeout_ms"] = beat.rebalance_timeout_ms
    if beat.instance_id is not None:
        body["instance_id"] = beat.instance_id
    return body


def _left(beat: Beat) -> BeatAnswer:
    return BeatAnswer(
        member_id=beat.member_id,
        member_epoch=beat.member_epoch,
        generation=0,
        heartbeat_interval_ms=0,
        assignment=frozenset(),
    )
