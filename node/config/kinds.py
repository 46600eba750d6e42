"""Kinds of option values: how each is parsed from text or TOML, which values are allowed, and how it is shown.

Every kind accepts both the TOML value and the text of an environment variable or flag. It raises ``ValueError`` with a
short reason, also if the value has the wrong type. ``node.config.sources`` adds the source, the name and the allowed
values to the message.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit


class Address(NamedTuple):
    """An address to listen on or to connect to. ``host``: a name, or an IP address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def is_wildcard(self) -> bool:
        """Whether the address means every interface. A node can listen on it, but cannot connect to it."""
        return self.host in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound

    def overlaps(self, other: "Address") -> bool:
        """Whether two sockets that listen at these addresses would get the same connections.

        Names are not resolved, except ``localhost``. Port 0 is a port that the system chooses, so it differs.
        """
        if self.port != other.port or self.port == 0:
            return False
        hosts = {self.host, other.host}
        is_local = "localhost" in hosts and hosts <= {"localhost", "127.0.0.1", "::1"}
        return len(hosts) == 1 or is_local or self.is_wildcard or other.is_wildcard


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionKind:
    """One kind of value. ``parse``: returns the typed value or raises ``ValueError``."""

    allowed: str
    """The allowed values, for messages and the documentation."""
    placeholder: str
    """The name of the value in ``--help``."""
    parse: Callable[[object], object]
    show: Callable[[object], str] = str
    """Returns the text form of a value, which ``parse`` can read."""
    is_switch: bool = False


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")  # noqa: TRY004 - see the module
    return value.strip()


def integer(least: int, most: int, unit: str = "") -> OptionKind:
    """Return the kind of whole numbers within [least, most]. Underscores between digits are allowed."""

    def parse(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d(_?\d)*", value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("not a whole number")  # noqa: TRY004 - see the module
        if not least <= value <= most:
            raise ValueError("out of range")
        return value

    of_unit = f" {unit}" if unit else ""
    return OptionKind(allowed=f"{least} to {most}{of_unit}", placeholder="N", parse=parse)


_SWITCH = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def switch() -> OptionKind:
    """Return the kind of truth values."""

    def parse(value: object) -> bool:
        if isinstance(value, bool):
            return value
        word = _text(value).lower()
        if word not in _SWITCH:
            raise ValueError("neither true nor false")
        return _SWITCH[word]

    return OptionKind(
        allowed="true or false",
        placeholder="",
        parse=parse,
        show=lambda value: "true" if value else "false",
        is_switch=True,
    )


def word(allowed: str = "any text", *, pattern: str = r".{1,255}") -> OptionKind:
    """Return the kind of texts that match ``pattern``."""

    def parse(value: object) -> str:
        text = _text(value)
        if not re.fullmatch(pattern, text):
            raise ValueError("not of this form")
        return text

    return OptionKind(allowed=allowed, placeholder="TEXT", parse=parse)


def pattern() -> OptionKind:
    """Return the kind of RE2 regular expressions with at least one group."""

    def parse(value: object) -> str:
        import re2  # noqa: PLC0415 - only where one is given

        text = _text(value)
        options = re2.Options()
        options.log_errors = False
        try:
            compiled = re2.compile(text, options)
        except (re2.error, UnicodeEncodeError) as error:
            raise ValueError(f"no pattern of RE2: {error}") from None
        if compiled.groups < 1:
            raise ValueError("it has no group (...)")
        return text

    return OptionKind(allowed="a pattern of RE2 with a group", placeholder="PATTERN", parse=parse)


def choice(*words: str) -> OptionKind:
    """Return a kind of which only the given words are values."""

    def parse(value: object) -> str:
        text = _text(value).lower()
        if text not in words:
            raise ValueError("not one of these words")
        return text

    return OptionKind(allowed=" or ".join(words), placeholder="WORD", parse=parse)


def path(what: str) -> OptionKind:
    """Return the kind of paths, absolute or relative to the working directory. ``~`` at the start: home directory."""

    def parse(value: object) -> Path:
        text = _text(value)
        if not text or "\0" in text:
            raise ValueError("empty")
        return Path(text).expanduser()

    return OptionKind(allowed=f"path of a {what}", placeholder="PATH", parse=parse)


_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*\.?$")


def parse_address(value: object, *, port_min: int = 1) -> Address:
    """Parse ``host:port``; an IPv6 address is in brackets.

    Raises:
        ValueError: the text has another form, or the port is out of range.
    """
    text = _text(value)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5:
        raise ValueError("not HOST:PORT")
    if not port_min <= int(port) <= 65535:
        raise ValueError(f"the port is not within {port_min} to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = str(ipaddress.IPv6Address(host[1:-1]))
    elif not _HOST.match(host):
        raise ValueError("not HOST:PORT (an IPv6 address stands in brackets)")
    return Address(host, int(port))


def listen_address() -> OptionKind:
    """Return the kind of addresses to listen on. Port 0 means any free port."""
    return OptionKind(
        allowed="HOST:PORT, port 0 to 65535 (0: any free one)",
        placeholder="HOST:PORT",
        parse=lambda value: parse_address(value, port_min=0),
    )


def dial_address() -> OptionKind:
    """Return the kind of addresses to which other nodes connect."""

    def parse(value: object) -> Address:
        address = parse_address(value)
        if address.is_wildcard:
            raise ValueError("no client can connect to a wildcard address")
        return address

    return OptionKind(allowed="HOST:PORT, port 1 to 65535", placeholder="HOST:PORT", parse=parse)


def addresses() -> OptionKind:
    """Return the kind of lists of addresses."""
    return _list(parse_address, "HOST:PORT[,HOST:PORT...]", "HOST:PORT,...")


def origins() -> OptionKind:
    """Return the kind of lists of web origins."""
    return _list(
        lambda item: str(url().parse(item)).lower(),
        "http://HOST[:PORT] or https://HOST[:PORT], separated by commas; no `*`",
        "URL,...",
    )


def host_names() -> OptionKind:
    """Return the kind of lists of host names."""

    def parse(item: object) -> str:
        if item != "*" and not _HOST.match(str(item).removeprefix(".")):
            raise ValueError(f"'{item}' is not the name of a host: give it without scheme and port")
        return str(item).lower()

    return _list(parse, "HOST or .DOMAIN, separated by commas; `*` for any name", "HOST,...")


def networks() -> OptionKind:
    """Return the kind of lists of IP addresses and networks."""

    def parse(item: object) -> str:
        try:
            ipaddress.ip_network(str(item), strict=False)
        except ValueError:
            raise ValueError(f"'{item}' is neither an address nor a network") from None
        return str(item)

    return _list(parse, "ADDRESS or ADDRESS/BITS, separated by commas", "NETWORK,...")


def _list(parse_item: Callable[[object], object], allowed: str, placeholder: str) -> OptionKind:
    """Return a kind of lists: a TOML array, or a text with commas."""

    def parse(value: object) -> tuple[object, ...]:
        items = value if isinstance(value, list) else _items(_text(value))
        return tuple(parse_item(item) for item in items)

    return OptionKind(
        allowed=allowed,
        placeholder=placeholder,
        parse=parse,
        show=lambda value: ",".join(map(str, value)) if isinstance(value, tuple) else "",
    )


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _voter_pairs(value: object) -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        return [(str(node_id), address) for node_id, address in value.items()]
    pairs: list[tuple[str, object]] = []
    for item in _items(_text(value)):
        node_id, equals, address = item.partition("=")
        if not equals:
            raise ValueError(f"{item!r} is not ID=HOST:PORT")
        pairs.append((node_id.strip(), address.strip()))
    return pairs


def voters() -> OptionKind:
    """Return the kind of the voters: a TOML table, or ``ID=HOST:PORT`` with commas."""

    def parse(value: object) -> dict[int, Address]:
        result: dict[int, Address] = {}
        for node_id, address in _voter_pairs(value):
            if not re.fullmatch(r"[1-9]\d{0,8}", node_id):
                raise ValueError(f"{node_id!r} is not a node id")
            if int(node_id) in result:
                raise ValueError(f"node id {node_id} stands there twice")
            result[int(node_id)] = parse_address(address)
        if len(result) not in {0, 1, 3, 5}:
            raise ValueError(
                f"{len(result)} voters survive no more failures than {len(result) - 1}"
            )
        return result

    def show(value: object) -> str:
        pairs = value.items() if isinstance(value, Mapping) else ()
        return ",".join(f"{node_id}={address}" for node_id, address in pairs)

    return OptionKind(
        allowed="ID=HOST:PORT,... of 1, 3 or 5 nodes; ids are 1 to 999999999",
        placeholder="ID=HOST:PORT,...",
        parse=parse,
        show=show,
    )


def url() -> OptionKind:
    """Return the kind of URLs without a path: ``http://host:port`` or ``https://...``."""

    def parse(value: object) -> str:
        text = _text(value).rstrip("/")
        parts = urlsplit(text)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("not an http:// or https:// URL")
        if parts.path or parts.query or parts.fragment or parts.username:
            raise ValueError("a path, query or user has no place here")
        parts.port  # noqa: B018 - raises ValueError when out of range
        return text

    return OptionKind(
        allowed="http://HOST:PORT or https://HOST:PORT", placeholder="URL", parse=parse
    )


def https_url() -> OptionKind:
    """Return the kind of a document's URL: ``https://host[:port]/path``."""

    def parse(value: object) -> str:
        text = _text(value)
        parts = urlsplit(text)
        if parts.scheme != "https" or not parts.hostname:
            raise ValueError("not an https:// URL")
        if parts.fragment or parts.username or parts.password is not None:
            raise ValueError("a user or fragment has no place here")
        parts.port  # noqa: B018 - raises ValueError when out of range
        return text

    return OptionKind(allowed="https://HOST[:PORT]/PATH", placeholder="URL", parse=parse)
