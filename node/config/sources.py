"""Reads options from their sources. In rising priority: defaults, a TOML file, ``MILENA_*`` variables, flags."""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from milena.model.errors import StartupError
from node.config.options import OPTIONS, NodeConfig
from node.config.rules import check_config

ENVIRONMENT_PREFIX = "MILENA_"
# Variables with this prefix that other programs of the project read.
FOREIGN_VARIABLES = frozenset(
    {
        *("MILENA_URL", "MILENA_PROFILE", "MILENA_CONFIG", "MILENA_PURE", "MILENA_ANNOUNCE"),
        *("MILENA_TOKEN_FILE", "MILENA_TOKEN", "MILENA_CA", "MILENA_CERT", "MILENA_KEY"),
        *("MILENA_USER", "MILENA_PASSWORD_FILE", "MILENA_PASSWORD", "MILENA_CLIENT_ID"),
    }
)
# Variables that Kubernetes sets in every container if a service's name starts with "milena".
SERVICE_LINK = re.compile(
    r"MILENA(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)"
)


def flag_of(name: str) -> str:
    """Return the command-line flag of an option."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of an option."""
    return ENVIRONMENT_PREFIX + name.upper()


def _parse(name: str, value: object, source: str) -> object:
    meta = OPTIONS[name]
    try:
        return meta.kind.parse(value)
    except ValueError as error:
        shown = "(hidden)" if meta.is_secret else repr(value)
        raise StartupError(
            f"{source}: {name} = {shown}: {error}; allowed: {meta.kind.allowed}"
        ) from None


def _from_file(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StartupError(
            f"cannot read the configuration file {path}: {error.strerror or error}"
        ) from error
    except UnicodeDecodeError as error:
        raise StartupError(f"cannot read the configuration file {path}: {error}") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StartupError(f"{path} is not TOML: {error}") from error
    for name in table:
        if name not in OPTIONS:
            raise StartupError(f"{path}: unknown key {name!r}{_meant(name)}")
    return {name: _parse(name, value, str(path)) for name, value in table.items()}


def _meant(name: str, shown: Callable[[str], str] = str) -> str:
    import difflib  # noqa: PLC0415 - only on the way to a refusal

    close = difflib.get_close_matches(name.lower().replace("-", "_"), OPTIONS, n=1)
    return f" (did you mean {shown(close[0])!r}?)" if close else ""


def _is_foreign(variable: str) -> bool:
    return variable in FOREIGN_VARIABLES or SERVICE_LINK.fullmatch(variable) is not None


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    result: dict[str, object] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or _is_foreign(variable):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in OPTIONS or variable != variable_of(name):
            raise StartupError(
                f"environment: unknown variable {variable}{_meant(name, variable_of)}"
            )
        result[name] = _parse(name, value, f"environment variable {variable}")
    return result


def load_config(
    config_file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
) -> NodeConfig:
    """Merge the sources and check the result as a whole.

    ``flags``: option → value on the command line; None for a flag that was not given.

    Raises:
        StartupError: a name is unknown, a value is not allowed, or options contradict each other. The message names the
            source, the option, its value and the allowed values.
    """
    values: dict[str, Any] = {}
    if config_file is not None:
        values |= _from_file(config_file)
    values |= _from_environment(environment)
    values |= {
        name: _parse(name, value, f"flag {flag_of(name)}")
        for name, value in flags.items()
        if value is not None
    }
    config = NodeConfig(**values)
    check_config(config)
    return config
