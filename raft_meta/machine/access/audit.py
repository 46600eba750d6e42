"""The audit log: an entry for each applied change, and the entries that the audit topic does not have yet.

``apply`` derives the entries from commands. So every node makes the same entries, and no change can bypass the audit
log. The command's envelope names the principal.

If the topic ``TOPIC`` exists, entries wait in the image until the topic's log has them. The controller's node writes
them to the log and then proposes ``ForgetAudited``, which removes them from the image. So no crash loses an entry. Each
entry has a number. The writer compares it with the last number in the log, so it never writes an entry twice.

If the topic cannot be written for long, the waiting entries grow. Beyond ``BYTES_MAX``, the oldest are dropped, and the
gap in the numbers shows how many. Refusing changes instead would block the repair of the cluster, because a repair is
a change, too.
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
"""The feature level from which on envelopes name principals, and the image keeps entries."""
CHILDREN_LEVEL = 12
"""The feature level from which on the deletion of a token names the tokens that go with it. Entries are part of the
image, which must be the same on nodes of all releases."""

TOPIC = "__audit"
BYTES_MAX = 4 << 20
CHANGE_LENGTH_MAX = 256 << 10
"""Longest ``change`` of an entry. A longer one is replaced by its length, so that each entry fits into one record."""
NOTE_LENGTH_MAX = 64 << 10
_ACTION = re.compile(r"[a-z_]{1,64}")
_ENTRY_BYTES = 512
"""Largest size of an entry without its ``change``."""

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
"""The audited commands. For each: the name of the action in its entry, and the fields that the entry copies.

Other commands are not audited: nodes send them by themselves, or clients send them all the time. Fields are listed one
by one. So if a command gets a new field with a secret or a hash, no entry contains it.
"""


def noted(
    before: Image, after: Image, envelope: c.Envelope, *, index: int, now_ms: WallMs
) -> tuple[Image, AuditEntry | None]:
    """Return the image with the audit entry of a command, and the entry.

    The command has turned ``before`` into ``after``. The entry is None if the command is not audited or changed
    nothing.
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
        # Without the audit topic, no entry is kept. Entries that waited for it before it was deleted are dropped.
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
    """Apply a command about the audit log.

    Raises:
        InvalidRequestError: the action of a NoteAction has a wrong name, or its details are too long or no JSON object.
    """
    if isinstance(command, c.ForgetAudited):
        return forget(image, command)
    _check_note(command)
    return Outcome(image)


def note_text(change: Mapping[str, object]) -> str:
    """Return the details of an action for a ``NoteAction``.

    A client may send names and lists of any length. The longest fields are replaced by their lengths until the details
    fit, so that no request is refused because of the audit log.
    """
    text = _dumped(change)
    if len(text) <= NOTE_LENGTH_MAX:
        return text
    lengths = {name: len(_dumped(value)) for name, value in change.items()}
    longest = max(lengths, key=lengths.__getitem__)
    return note_text({**change, longest: _left_out(lengths[longest])})


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
    """Remove the entries that the topic has, up to the number ``through``; response: how many were removed."""
    after = _without(image, command.through)
    return Outcome(after, len(image.audited) - len(after.audited))


def size_of(entry: AuditEntry) -> int:
    """Return the approximate size of an entry in bytes."""
    return _ENTRY_BYTES + len(entry.change)


def first_number(image: Image) -> int:
    """Return the number of the first waiting entry; if none waits, the number of the next entry."""
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
    text = _dumped(change)
    return text if len(text) <= CHANGE_LENGTH_MAX else _dumped(_left_out(len(text)))


def _dumped(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _left_out(length: int) -> Mapping[str, int]:
    return {"left_out_characters": length}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value


def _seen_before(before: Image, command: c.Command) -> dict[str, object]:
    """Return fields of an entry that come from the image before the command, not from the command itself."""
    match command:
        case c.DeleteTopic() | c.AddPartitions() | c.AlterConfigs():
            return {"name": before.topics[command.topic_id].name}
        case c.DeleteTokens() if before.feature_level >= CHILDREN_LEVEL:
            gone = {*command.token_ids}
            left = list(command.token_ids)
            while left:
                left += before.token_children.get(left.pop(), ())
                gone.update(left)
            children = sorted(gone.difference(command.token_ids))
            return {"child_token_ids": children} if children else {}
        case c.PutUser():
            present = before.users.get(command.name)
            verifiers = () if present is None else present.verifiers
            scram = () if present is None else present.scram
            return {
                "is_new": present is None,
                "is_password_changed": command.verifiers != verifiers,
                # Left out unless true: entries are part of the image, and earlier releases do not have these fields.
                **({"are_tokens_revoked": True} if command.revokes_tokens else {}),
                **({"is_scram_changed": True} if command.scram != scram else {}),
            }
        case _:
            return {}


def problems(image: Image) -> Iterator[str]:
    """Yield a sentence for each violation of the invariants in this part of an image."""
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
