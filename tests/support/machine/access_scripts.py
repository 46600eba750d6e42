"""Command lines of users, tokens, access control entries and quotas, for ``machine_scripts``.

init-access root [mode=required]                     create the first user
mode required
user ann [version=0] [passwords=p,q] [super] [scram=SCRAM-SHA-256:4096,..] [key=none]     create or change a user
delete-user ann
token tok00001 ann [of=7] [grants=TOPIC:orders*:READ+WRITE,..] [expires=5000]
delete-tokens tok00001,..
acls +User:ann:TOPIC:orders*:READ -User:ann:...:DENY:10.0.0.1      a star at the end makes a prefix of a name
quota ann/app request_rate=5 producer_byte_rate=      /app and ann/ name only one; an empty value removes a limit
"""

from milena.model.types import WallMs
from raft_meta.machine import commands as c
from raft_meta.machine.image import Acl, Grant, Image, ScramCredential

VERBS = ("init-access", "mode", "user", "delete-user", "token", "delete-tokens", "acls", "quota")


def command_of(image: Image, verb: str, words: tuple[str, ...], named: dict[str, str]) -> c.Command:
    first = words[0]
    match verb:
        case "init-access":
            return c.InitAccess(
                name=first, verifier="hash-of-secret", access_mode=named.get("mode", "required")
            )
        case "mode":
            return c.SetAccessMode(access_mode=first)
        case "user":
            known = image.users.get(first)
            return c.PutUser(
                name=first,
                version=int(named.get("version", known.version if known else 0)),
                verifiers=tuple(word for word in named.get("passwords", "").split(",") if word),
                is_superuser="super" in words,
                scram=tuple(_scram(text) for text in named.get("scram", "").split(",") if text),
                decoy_key=b"" if named.get("key") == "none" else b"d" * 32,
            )
        case "delete-user":
            return c.DeleteUser(name=first)
        case "token":
            owner = image.users.get(words[1])
            grants = named.get("grants", "")
            return c.CreateToken(
                token_id=first,
                user=words[1],
                user_index=int(named.get("of", owner.created_index if owner else 0)),
                secret_hash=bytes(32),
                note="",
                grants=tuple(_grant(text) for text in grants.split(",") if text),
                expires_ms=WallMs(int(named.get("expires", 0))),
            )
        case "delete-tokens":
            return c.DeleteTokens(token_ids=tuple(first.split(",")))
        case "quota":
            user, client_id = first.split("/")
            changes = tuple((key, int(text) if text else None) for key, text in named.items())
            return c.AlterQuota(user=user, client_id=client_id, changes=changes)
        case _:
            assert verb == "acls", verb
            return c.AlterAcls(
                added=tuple(acl_of(word[1:]) for word in words if word.startswith("+")),
                removed=tuple(acl_of(word[1:]) for word in words if word.startswith("-")),
            )


def _pattern(text: str) -> tuple[str, str]:
    is_prefix = text.endswith("*") and text != "*"
    return ("PREFIXED", text[:-1]) if is_prefix else ("LITERAL", text)


def _scram(text: str) -> ScramCredential:
    mechanism, iterations = text.split(":")
    size = 64 if mechanism.endswith("512") else 32
    return ScramCredential(
        mechanism=mechanism,
        iterations=int(iterations),
        salt=b"salt",
        stored_key=b"s" * size,
        server_key=b"v" * size,
    )


def _grant(text: str) -> Grant:
    kind, name, operations = text.split(":")
    pattern, name = _pattern(name)
    return Grant(
        resource_type=kind, pattern_type=pattern, name=name, operations=tuple(operations.split("+"))
    )


def acl_of(text: str) -> Acl:
    """Parse ``User:ann:TOPIC:orders*:READ``, with an optional ``ALLOW`` or ``DENY`` and an optional host."""
    prefix, user, kind, name, operation, *rest = text.split(":")
    pattern, name = _pattern(name)
    permission, host = (*rest, *("ALLOW", "*")[len(rest) :])
    return Acl(
        principal=f"{prefix}:{user}",
        resource_type=kind,
        pattern_type=pattern,
        name=name,
        operation=operation,
        permission=permission,
        host=host,
    )


def acl_text(acl: Acl) -> str:
    star = "*" if acl.pattern_type == "PREFIXED" else ""
    words = [acl.principal, acl.resource_type, acl.name + star, acl.operation, acl.permission]
    return ":".join([*words, acl.host])


def describe_acls(before: Image, now: Image) -> list[str]:
    """Return a line per changed entry: ``+`` if it was added, ``-`` if it was removed."""
    old, new = ({a for found in image.acls.values() for a in found} for image in (before, now))
    return [f"acl {'+' if acl in new else '-'}{acl_text(acl)}" for acl in sorted(old ^ new)]
