"""What containers see as their root: parts of this machine, read-only, in the place of an image.

The interpreter and the project's environment stand where they stand on the machine, because their scripts name those
places. Nothing else of the machine is visible. (What the real image holds is another test's business.)
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).parents[3]
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Directories that newer systems keep below ``/usr`` and link to."""

SHARED = ("/usr", "/etc/ssl", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")

USERS = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nmilena:x:10001:10001::/var/lib/milena:/usr/sbin/nologin\n",
    "/etc/group": "root:x:0:\nmilena:x:10001:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RootLayout:
    """A root file system: directories bound read-only, symbolic links, small files, empty directories."""

    binds: tuple[str, ...]
    links: Mapping[str, str]
    files: Mapping[str, str]
    directories: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What an image's configuration says of a container that says nothing itself."""

    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: int = 0
    group: int = 0
    working_directory: str = "/"


def host_layout() -> RootLayout:
    """This machine's system directories, its Python and the project."""
    binds = [path for path in SHARED if Path(path).exists()]
    links = {}
    for name in MERGED:
        path = Path("/") / name
        if path.is_symlink():
            links[str(path)] = str(path.readlink())
        elif path.exists():
            binds.append(str(path))
    for prefix in (sys.base_prefix, sys.prefix, str(PROJECT)):
        if not any(Path(prefix).is_relative_to(bound) for bound in binds):
            binds.append(prefix)
    return RootLayout(
        binds=tuple(binds),
        links=links,
        files=USERS,
        directories=("/tmp", "/var/lib/milena", "/run", "/root"),
    )


def host_environment() -> dict[str, str]:
    """The variables of an image that has the project's programs on its path."""
    path = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
    return {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "HOME": "/tmp"}
