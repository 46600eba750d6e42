"""Profiles: names for clusters, in a file of the user; ``milena profiles`` lists them.

    default = "local"

    [profiles.local]
    url = "http://127.0.0.1:8082"

    [profiles.production]
    url = "https://log.example.org"
    timeout = 30
    token_file = "~/.config/milena/production.token"

Credentials have the client's names (``milena.cluster.credentials``). If the file itself holds a token or a password,
only its owner may read it.

The whole file is checked when it is read, so that a mistake is found before the profile is used.
"""

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from milena.cluster.credentials import FILES, NAMES, SECRETS, Credentials
from milena.commands import output
from milena.commands.options import JSON
from milena.commands.target import EXIT_USAGE
from milena.fields import Json

TIMEOUT_S_MIN = 0.1
_FILE_KEYS = ("default", "profiles")
_PROFILE_KEYS = ("url", "timeout", *NAMES)
_OTHERS_MAY_READ = 0o077


class BadProfileError(click.ClickException):
    """The file of profiles cannot be used, or has no profile of this name."""

    exit_code = EXIT_USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A cluster by name. ``timeout_s`` None means the default. ``credentials`` are texts by the client's names."""

    name: str
    url: str
    timeout_s: float | None = None
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """All profiles. ``default`` is the one to use if the user names none."""

    path: Path
    profiles: dict[str, Profile] = field(default_factory=dict)
    default: str | None = None

    def get(self, name: str) -> Profile:
        """Return the profile of a name.

        Raises:
            BadProfileError: there is no profile of this name.
        """
        found = self.profiles.get(name)
        if found is None:
            known = ", ".join(self.profiles) or "none"
            raise BadProfileError(f"no profile {name!r} in {self.path}; there: {known}")
        return found


def profile_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the file: below ``XDG_CONFIG_HOME``, by default ``~/.config``."""
    home = Path(environment.get("XDG_CONFIG_HOME", ""))
    # XDG base directory specification: ignore a value that is not absolute.
    if not home.is_absolute():
        home = Path.home() / ".config"
    return home / "milena" / "config.toml"


def load_profiles(path: Path) -> ProfileFile:
    """Return the profiles of a file; without the file, there are none.

    Raises:
        BadProfileError: the file cannot be read, or something in it is wrong; the message names the line if known.
    """
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except FileNotFoundError:
        return ProfileFile(path=path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadProfileError(f"cannot read {path}: {error}") from error
    try:
        found = parse_profiles(text, path)
    except tomllib.TOMLDecodeError as error:
        # The error's text names line and column.
        raise BadProfileError(f"{path} is not TOML: {error}") from error
    has_secret = any(SECRETS & profile.credentials.keys() for profile in found.profiles.values())
    if has_secret and mode & _OTHERS_MAY_READ:
        raise BadProfileError(
            f"{path} holds a secret, and others may read it: chmod 600 {path}, or give token_file or password_file"
        )
    return found


def parse_profiles(text: str, path: Path) -> ProfileFile:
    """Parse the profiles in a text.

    Raises:
        TOMLDecodeError: the text is no TOML.
        BadProfileError: something in it is wrong.
    """
    parsing = _Parsing(text, path)
    table = tomllib.loads(text)
    for name in table.keys() - set(_FILE_KEYS):
        if isinstance(table[name], dict):
            raise parsing.wrong(f"a profile is a table [profiles.{name}], not [{name}]", name)
    parsing.refuse_others(table, _FILE_KEYS, "")
    named = table.get("profiles", {})
    if not isinstance(named, dict):
        raise parsing.wrong("profiles must be tables: [profiles.NAME]", "profiles")
    profiles = {name: parsing.profile(name, values) for name, values in named.items()}
    default = table.get("default")
    if default is not None and default not in profiles:
        raise parsing.wrong(f"default = {default!r} names no profile of this file", "default")
    return ProfileFile(path=path, profiles=profiles, default=default)


class _Parsing:
    """The text and its path, for errors that name the line."""

    def __init__(self, text: str, path: Path) -> None:
        self._lines = text.splitlines()
        self._path = path

    def profile(self, name: str, values: object) -> Profile:
        """Return the profile of one table."""
        if not isinstance(values, dict):
            raise self.wrong(f"profile {name} must be a table: [profiles.{name}]", name)
        self.refuse_others(values, _PROFILE_KEYS, f"profile {name}: ", section=name)
        url, timeout = values.get("url"), values.get("timeout")
        if not isinstance(url, str) or not url:
            raise self.wrong(f'profile {name}: say url = "http://HOST:PORT"', "url", section=name)
        if timeout is not None and not _is_timeout(timeout):
            told = f"profile {name}: timeout is a number of seconds, at least {TIMEOUT_S_MIN}"
            raise self.wrong(told, "timeout", section=name)
        return Profile(
            name=name, url=url, timeout_s=timeout, credentials=self._credentials(name, values)
        )

    def _credentials(self, name: str, values: Mapping[str, object]) -> dict[str, str]:
        texts: dict[str, str] = {}
        for key in NAMES:
            text = values.get(key)
            if text is None:
                continue
            if not isinstance(text, str) or not text:
                raise self.wrong(f"profile {name}: {key} is a text", key, section=name)
            texts[key] = os.path.expanduser(text) if key in FILES else text
        try:
            Credentials.from_texts(texts)
        except ValueError as error:
            raise self.wrong(f"profile {name}: {error}", min(texts), section=name) from error
        return texts

    def refuse_others(
        self,
        values: Mapping[str, object],
        known: tuple[str, ...],
        where: str,
        *,
        section: str | None = None,
    ) -> None:
        """Refuse an unknown key."""
        for key in values:
            if key not in known:
                told = f"{where}unknown key {key!r}; known: {', '.join(known)}"
                raise self.wrong(told, key, section=section)

    def wrong(self, told: str, key: str, *, section: str | None = None) -> BadProfileError:
        """Return an error at the line of a key, or of its section if the key is missing."""
        line = self._line(key, section)
        return BadProfileError(f"{self._path}{'' if line is None else f', line {line}'}: {told}")

    def _line(self, key: str, section: str | None) -> int | None:
        head = None
        for number, line in enumerate(self._lines, 1):
            if section is not None and re.match(rf"\s*\[profiles\.\W?{re.escape(section)}\W", line):
                head = number
            elif head is not None and line.lstrip().startswith("["):
                return head
            elif (section is None or head is not None) and re.match(
                rf"\s*\[?\W?{re.escape(key)}\b", line
            ):
                return number
        return head


def _is_timeout(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and TIMEOUT_S_MIN <= value < math.inf
    )


def own_profiles() -> ProfileFile:
    """Return this user's profiles."""
    return load_profiles(profile_path(os.environ))


def complete_profile(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return names for the shell's completion; none if the file is wrong."""
    del ctx, parameter
    try:
        names = own_profiles().profiles
    except BadProfileError:
        return []
    return [name for name in names if name.startswith(incomplete)]


@click.command()
@JSON
def profiles(is_json: bool) -> None:
    """List the profiles of this user: names for clusters, for use with --profile."""
    found = own_profiles()

    def text(listed: Sequence[Profile]) -> str:
        rows = [
            (
                p.name,
                p.url,
                None if p.timeout_s is None else f"{p.timeout_s:g}",
                "default" if p.name == found.default else "",
            )
            for p in listed
        ]
        return output.table(("PROFILE", "URL", "TIMEOUT", ""), rows)

    def row(p: Profile) -> Json:
        is_default = p.name == found.default
        return {"name": p.name, "url": p.url, "timeout_s": p.timeout_s, "is_default": is_default}

    none = f"no profiles: {found.path} is where they are looked for"
    output.show_list(is_json, list(found.profiles.values()), text, none, row)
