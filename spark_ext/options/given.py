"""Look up the options that the user gave, as values; names may be in any case (pure).

An option that makes no sense is refused with the reason. So is an unknown name, because a misspelt option that is
silently ignored reads the wrong records. An option that changes nothing is accepted, with a log line.
"""

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from milena.cluster.credentials import Credentials
from milena.cluster.routing import USER_IN_URL, without_user
from spark_ext.errors import OptionError
from spark_ext.options.credentials import parse_credentials
from spark_ext.options.ignored import warn_ignored, why_ignored

SERVERS = ("kafka.bootstrap.servers", "url")
NOTHING: Mapping[str, str] = MappingProxyType({})
"""An empty environment: with it, only the options set the credentials."""

T = TypeVar("T")

_DESERIALIZED = "keys and values are always binary; cast them in the query"
_SERIALIZED = "keys and values are strings or binary; serialize them in the query"
_SECURED = (
    "say who asks with milena.token, milena.tokenFile, or milena.user and milena.password; of Kafka's, "
    "kafka.sasl.jaas.config with a PlainLoginModule"
)
_CERTIFIED = "certificates are PEM files, named by milena.ca, milena.cert and milena.key"
_NAMED = "topics are named by subscribe, subscribePattern or assign, and by topic when writing"
_REFUSED = {
    "kafka.auto.offset.reset": "say where to begin with startingOffsets",
    "kafka.enable.auto.commit": "the source commits no offsets",
    "kafka.key.deserializer": _DESERIALIZED,
    "kafka.value.deserializer": _DESERIALIZED,
    "kafka.key.serializer": _SERIALIZED,
    "kafka.value.serializer": _SERIALIZED,
    "kafka.interceptor.classes": "interceptors would run in a Kafka client, and there is none",
    "kafka.enable.idempotence": "a task's writes are always idempotent",
    "kafka.acks": "a write is always acknowledged by every in-sync replica",
    "kafka.isolation.level": "committed records are read, always",
    "kafka.transactional.id": "a write's transactions have the name that transactionalId says",
    "kafka.compression.type": "say compression",
    "kafka.client.id": "say milena.clientId",
    **dict.fromkeys(("path", "paths", "topic", "subscribe", "subscribepattern", "assign"), _NAMED),
}
_REFUSED_PREFIXES = {
    "kafka.security.": _SECURED,
    "kafka.sasl.": _SECURED,
    "kafka.ssl.": _CERTIFIED,
    "kafka.": "it would configure a Kafka client, and there is none; leave it out",
}
_SET_BY_SPARK = ("serialization.format",)
_OPTION_PREFIX = "option."
_MS_PER_UNIT = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
"""Units of time as Spark reads them; a number without a unit is in ms."""


_NO_OPTION = (
    "kafka.bootstrap.servers: required; no option is given at all. Spark does not hand a data source the OPTIONS of "
    "CREATE TABLE: give them in the query, as in SELECT … FROM t WITH (url = '…', subscribe = '…'), or make a view: "
    "CREATE TEMPORARY VIEW … USING milena OPTIONS (…)"
)


def _of_query(values: dict[str, str]) -> dict[str, str]:
    """Return the options without the properties of a table.

    When a table is created, Spark gives all its properties, including ``provider`` and ``owner``. It gives those of
    ``OPTIONS`` a second time, under a prefix.
    """
    if not {"provider", "owner"} <= values.keys():
        return values
    return {
        name.removeprefix(_OPTION_PREFIX): value
        for name, value in values.items()
        if name.startswith(_OPTION_PREFIX)
    }


class GivenOptions:
    """The options that the user gave, by name in any case. Each lookup refuses a value that it cannot parse.

    Raises:
        OptionError: one line that names the option.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        known: tuple[str, ...],
        environment: Mapping[str, str],
        reasons: Mapping[str, str] = NOTHING,
    ) -> None:
        self._environment = environment
        self._values = _of_query({name.lower(): value for name, value in options.items()})
        if not self._values:
            raise OptionError(_NO_OPTION)
        spelling = {name.lower(): name for name in known}
        for name, value in self._values.items():
            if name in spelling or name in _SET_BY_SPARK:
                continue
            reason = why_ignored(name, value)
            if reason is None:
                raise unknown_option(name, known, reasons)
            warn_ignored(name, reason)

    def text(self, name: str) -> str | None:
        """Return the option's text as given, or None."""
        return self._values.get(name.lower())

    def present(self, names: tuple[str, ...]) -> list[str]:
        """Return those of ``names`` that were given."""
        return [name for name in names if name.lower() in self._values]

    def urls(self) -> tuple[str, ...]:
        """Return the URLs of the named nodes; at least one."""
        match self.present(SERVERS):
            case []:
                raise OptionError("kafka.bootstrap.servers: required; the URL of any node, or url")
            case [name]:
                text = self._values[name.lower()]
            case names:
                raise OptionError(f"{' and '.join(names)}: give one of the two")
        urls = tuple(part.strip() for part in text.split(",") if part.strip())
        if not urls:
            raise OptionError(f"{name}: give the URL of a node, or several separated by commas")
        for url in urls:
            if "@" in url:
                raise OptionError(
                    f"{name}: {without_user(url)} is not a URL of a node: {USER_IN_URL}"
                )
        return urls

    def credentials(self) -> Credentials:
        """Return the credentials from the options, else from the environment."""
        return parse_credentials(self.text, self.urls(), self._environment)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return an option that is true or false."""
        return self.choice(name, {"true": True, "false": False}, default)

    def choice(self, name: str, values: Mapping[str, T], default: T) -> T:
        """Return the value of the word that the option has, in any case."""
        text = self.text(name)
        if text is None:
            return default
        word = text.strip().lower()
        if word not in values:
            words = (" or " if len(values) == 2 else ", ").join(values)
            raise OptionError(f"{name}: expected {words}, got {text!r}")
        return values[word]

    def positive(self, name: str, default: T) -> int | T:
        """Return an integer of 1 or more."""
        text = self.text(name)
        return default if text is None else self._number(name, text, minimum=1)

    def count(self, name: str, default: T) -> int | T:
        """Return an integer of 0 or more."""
        text = self.text(name)
        return default if text is None else self._number(name, text, minimum=0)

    def duration_ms(self, name: str, default: int) -> int:
        """Return a time with a unit, in ms."""
        text = self.text(name)
        if text is None:
            return default
        found = re.fullmatch(r"([0-9]{1,15}) *([a-z]*)", text.strip().lower())
        unit = None if found is None else _MS_PER_UNIT.get(found[2])
        if found is None or unit is None:
            raise OptionError(
                f"{name}: expected a time such as 500ms, 30s, 15m or 1h, got {text!r}"
            )
        return int(found[1]) * unit

    @staticmethod
    def _number(name: str, text: str, *, minimum: int) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise OptionError(f"{name}: expected a number of {minimum} or more, got {text!r}")
        return number


SLIP_LIKENESS = 0.9
"""From this similarity (0 to 1), an unknown name counts as a misspelt option, even with a prefix of other software."""


def unknown_option(
    name: str, known: tuple[str, ...], reasons: Mapping[str, str] = NOTHING
) -> OptionError:
    """Return the error that says why an unknown option is refused.

    Args:
        name: the option, in lower case.
        known: the options that are possible here.
        reasons: why further options are not possible here, by their names in lower case.
    """
    reason = _REFUSED.get(name, reasons.get(name))
    near = difflib.get_close_matches(name, [option.lower() for option in known], n=1)
    is_slip = bool(difflib.get_close_matches(name, near, cutoff=SLIP_LIKENESS))
    if reason is None and not is_slip:
        prefix = next((prefix for prefix in _REFUSED_PREFIXES if name.startswith(prefix)), None)
        reason = None if prefix is None else _REFUSED_PREFIXES[prefix]
    if reason is not None:
        return OptionError(f"{name}: not possible: {reason}")
    spelling = {option.lower(): option for option in known}
    hint = f"; did you mean {spelling[near[0]]}?" if near else ""
    return OptionError(f"{name}: no such option{hint}")
