"""The audit log: an entry for each applied change, and the entries that the audit topic does not have yet.

Entries are derived from commands as they are applied. So every node makes the same entries, and no change can bypass
them. The command's envelope names the principal. If the topic ``TOPIC`` exists, entries stay in the image until its log
has them: the controller's node writes them there and then proposes ``ForgetAudited``. So no crash loses an entry. Each
entry has a number, so the writer finds the last one in the log and never writes an entry twice.

If the topic cannot be written for long, the oldest entries are dropped once the waiting ones exceed ``BYTES_MAX``.
Refusing changes instead would prevent the repair of the cluster, because a repair is a change. The gap in the numbers
shows how many entries are missing.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass

from milena.model.errors import InvalidRequestError
from milena.model.types import WallMs
from raft_meta.machine import commands as c
from raft_meta.machine.copies import replace
from raft_meta.machine.image import AuditEntry, Image
from raft_meta.machine.outcome import Outcome

LEVEL = 8
"""The feature level from which on commands name principals, and entries are kept."""

TOPIC = "__audit"
BYTES_MAX = 4 << 20
CHANGE_LENGTH_MAX = 256 << 10
"""Longest ``change`` of an entry. A longer one is replaced by its length, so that each fits a record of the topic."""
NOTE_LENGTH_MAX = 64 << 10
_ACTION = re.compile(r"[a-z_]{1,64}")
_ENTRY_BYTES = 512
"""Most bytes of an entry without ``change``."""

TOLD: Mapping[type[c.Command], tuple[str, tuple[str, ...]]] = {
    c.SetFeatureLevel: ("set_feature_level", ("feature_level",)),
    c.UnregisterBroker: ("unregister_broker", ("broker_id",)),
    c.CreateTopic: ("create_topic", ("name", "topic_id", "configs", "placement")),
    c.DeleteTopic: ("delete_topic", ("topic_id",)),
    c.AddPartitions: ("add_partitions", ("topic_id", "partition_count", "placement")),
    c.AlterConfigs: ("alter_configs", ("topic_id", "changes")),
    c.ReassignPartitions: ("reassign_partitions", ("targets",)),
    c.DeleteGroup: ("delete_group", ("group_id",)),
    c.InitAccess: ("init_access", ("name", "access_mode")),
    c.SetAccessMode: ("set_access_mode", ("access_mode",)),
    c.PutUser: ("put_user", ("name", "is_superuser")),
    c.DeleteUser: ("delete_user", ("name",)),
    c.CreateToken: ("create_token", ("token_id", "user", "note", "grants", "expires_ms")),
    c.DeleteTokens: ("delete_tokens", ("token_ids",)),
    c.AlterAcls: ("alter_acls", ("added", "removed")),
    c.AlterQuota: ("alter_quota", ("user", "client_id", "changes")),
    c.NoteAction: ("", ()),
}
"""The audited commands, the action that names each, and the fields that its entry has. Nodes send other commands by
themselves, or clients send them all the time.

The fields are listed one by one, so that a secret or hash in a new field of a command never gets into an entry.
"""


def noted(
    before: Image, after: Image, envelope: c.Envelope, *, index: int, now_ms: WallMs
) -> tuple[Image, AuditEntry | None]:
    """Return the image with the audit entry of a command that turned ``before`` into ``after``, and the entry.

    The entry is None for a command that is not audited or changed nothing.
    """
    command = envelope.command
    told = TOLD.get(type(command))
    if told is None or (after is before and not isinstance(command, c.NoteAction)):
        return after, None
    action, names = told
    is_counted = after.feature_level >= LEVEL
    number = after.audit_count + 1 if is_counted else 0
    entry = AuditEntry(
        number=number,
        index=index,
        time_ms=now_ms,
        principal=envelope.principal,
        node_id=envelope.proposer,
        action=command.action if isinstance(command, c.NoteAction) else action,
        change=command.change
        if isinstance(command, c.NoteAction)
        else _text(
            {
                **{name: _plain(getattr(command, name)) for name in names},
                **_seen_before(before, command),
            }
        ),
    )
    if not is_counted:
        return after, entry
    if TOPIC not in after.topic_ids:
        # If the audit topic was deleted, the waiting entries are dropped.
        after = _without(after, after.audit_count)
        return replace(after, audit_count=number), entry
    after = replace(
        after,
        audit_count=number,
        audited=after.audited.set(number, entry),
        audited_bytes=after.audited_bytes + size_of(entry),
    )
    return _within_bounds(after), entry


def apply(image: Image, command: c.ForgetAudited | c.NoteAction) -> Outcome:
    """Apply a command about the audit log; ``noted`` makes its entry.

    Raises:
        InvalidRequestError: the action is not one that the audit log accepts.
    """
    if isinstance(command, c.ForgetAudited):
        return forget(image, command)
    _check_note(command)
    return Outcome(image)


def _check_note(command: c.NoteAction) -> None:
    try:
        is_object = isinstance(json.loads(command.change), dict)
    except (ValueError, RecursionError):
        is_object = False
    if (
        not _ACTION.fullmatch(command.action)
        or not is_object
        or len(command.change) > NOTE_LENGTH_MAX
    ):
        raise InvalidRequestError("This is nothing that the audit log can tell.")


def forget(image: Image, command: c.ForgetAudited) -> Outcome:
    """Forget the entries that the topic has."""
    after = _without(image, command.through)
    return Outcome(after, len(image.audited) - len(after.audited))


def size_of(entry: AuditEntry) -> int:
    """Return the approximate bytes of an entry."""
    return _ENTRY_BYTES + len(entry.change)


def first_number(image: Image) -> int:
    """Return the first number of the waiting entries; if none waits, the number of the next entry."""
    return image.audit_count - len(image.audited) + 1


def _without(image: Image, through: int) -> Image:
    gone = range(first_number(image), min(through, image.audit_count) + 1)
    if not gone:
        return image
    audited, size = image.audited.mutate(), image.audited_bytes
    for number in gone:
        size -= size_of(audited.pop(number))
    return replace(image, audited=audited.finish(), audited_bytes=size)


def _within_bounds(image: Image) -> Image:
    while image.audited_bytes > BYTES_MAX:
        image = _without(image, first_number(image))
    return image


def _text(change: object) -> str:
    text = json.dumps(change, sort_keys=True, separators=(",", ":"))
    if len(text) <= CHANGE_LENGTH_MAX:
        return text
    return json.dumps({"left_out_characters": len(text)}, separators=(",", ":"))


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value


def _seen_before(before: Image, command: c.Command) -> dict[str, object]:
    """Return the fields of an entry that only the image before the command has, for readers of the log."""
    match command:
        case c.DeleteTopic() | c.AddPartitions() | c.AlterConfigs():
            return {"name": before.topics[command.topic_id].name}
        case c.PutUser():
            present = before.users.get(command.name)
            verifiers = () if present is None else present.verifiers
            return {
                "is_new": present is None,
                "is_password_changed": command.verifiers != verifiers,
                # Left out if it does not apply: entries are part of the image, and earlier releases write none.
                **({"are_tokens_revoked": True} if command.revokes_tokens else {}),
            }
        case _:
            return {}


def problems(image: Image) -> Iterator[str]:
    """Yield the violations in this part of an image."""
    if image.audit_count and image.feature_level < LEVEL:
        yield "changes are numbered below the feature level that does so"
    wanted = range(first_number(image), image.audit_count + 1)
    if len(image.audited) > image.audit_count or set(image.audited) != set(wanted):
        yield "changes that wait for the audit topic are not the last ones"
    if image.audited and TOPIC not in image.topic_ids:
        yield "changes wait for an audit topic, and there is none"
    if image.audited_bytes != sum(size_of(entry) for entry in image.audited.values()):
        yield "the size of what waits for the audit topic is wrong"
    for number, entry in image.audited.items():
        if entry.number != number or not 0 < entry.index <= image.index:
            yield f"change {number} is another one, or comes from the future"
