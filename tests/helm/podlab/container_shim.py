"""Starts one container and stays as its parent: run as a program, with the path of a specification in JSON.

It enters the pod's network namespace and makes new mount, PID, UTS and IPC namespaces. Its child, process 1 of the
container, builds the root file system in memory, drops all rights that the container may not have, and becomes the
program. The first line on standard output says ``{"pid": ...}``, as seen from outside, or ``{"error": ...}``. The
exit code is the program's, or 128 + the signal that ended it.

If the lab dies, the kernel kills this process, then process 1, and with it all that is left in the container. It
stands alone: no import but of the standard library, so that it starts in a few milliseconds.
"""

import ctypes
import json
import os
import signal
import socket
import stat
import sys
from typing import TypedDict

libc = ctypes.CDLL(None, use_errno=True)

MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND = 1, 2, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CAPABILITIES = 64
NOT_STARTED = 127


class Layout(TypedDict):
    """The image: directories bound read-only, symbolic links, small files, empty directories."""

    binds: list[str]
    links: dict[str, str]
    files: dict[str, str]
    directories: list[str]


class Mount(TypedDict):
    """A directory or file of the machine at a place in the container."""

    source: str
    target: str
    is_read_only: bool


class ContainerSpec(TypedDict):
    """All that is to be known to start a container. ``groups`` includes the first one."""

    network: str
    root: str
    log: str
    hostname: str
    layout: Layout
    files: dict[str, str]
    mounts: list[Mount]
    is_root_read_only: bool
    drops_capabilities: bool
    is_no_new_privileges: bool
    user: int
    group: int
    groups: list[int]
    working_directory: str
    command: list[str]
    environment: dict[str, str]


DEVICES = (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9))


def check(result: int, what: str) -> None:
    """Raise the error of a failed call of the C library."""
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    encoded = kind.encode() if kind else None
    result = libc.mount(source.encode(), target.encode(), encoded, flags, options.encode())
    check(result, f"mount {source} on {target}")


def bind(source: str, target: str, *, is_read_only: bool) -> None:
    """Show a file or directory at another place, made as needed."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.lexists(target):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, None, MS_BIND | MS_REC)
    if is_read_only:
        mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)


def mounts_in_order(spec: ContainerSpec) -> list[Mount]:
    """The machine's directories and the pod's volumes, the outer before the inner: none is covered by a later one.

    Wherever the project lies: below ``/tmp``, too, where pods have a volume.
    """
    shared: list[Mount] = [
        {"source": path, "target": path, "is_read_only": True} for path in spec["layout"]["binds"]
    ]
    return sorted([*shared, *spec["mounts"]], key=lambda place: place["target"])


def build_root(spec: ContainerSpec) -> None:
    """Mount everything below ``spec["root"]``."""
    root = spec["root"]
    layout = spec["layout"]
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID, "mode=755")
    for path in layout["directories"]:
        os.makedirs(root + path, exist_ok=True)
    os.chmod(root + "/tmp", 0o1777)
    for path, target in layout["links"].items():
        os.symlink(target, root + path)
    for path, text in {**layout["files"], **spec["files"]}.items():
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        with open(root + path, "w") as file:
            file.write(text)
    for place in mounts_in_order(spec):
        bind(place["source"], root + place["target"], is_read_only=place["is_read_only"])
    mount_kernel(root)
    if spec["is_root_read_only"]:
        mount("none", root, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)


def mount_kernel(root: str) -> None:
    """What every container gets: /proc, /sys, a /dev of its own."""
    for name in ("/proc", "/sys", "/dev"):
        os.makedirs(root + name, exist_ok=True)
    mount("proc", root + "/proc", "proc", MS_NOSUID)
    mount("sysfs", root + "/sys", "sysfs", MS_RDONLY | MS_NOSUID)
    mount("tmpfs", root + "/dev", "tmpfs", MS_NOSUID, "mode=755,size=64k")
    for name, minor in DEVICES:
        path = f"{root}/dev/{name}"
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        os.chmod(path, 0o666)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
    os.mkdir(root + "/dev/shm")
    mount("tmpfs", root + "/dev/shm", "tmpfs", MS_NOSUID, "mode=1777")


def enter_root(root: str) -> None:
    """Make it the root, and the machine's own unreachable."""
    os.chdir(root)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")


def drop_rights(spec: ContainerSpec) -> None:
    """Become the container's user, for good."""
    if spec["drops_capabilities"]:
        for capability in range(CAPABILITIES):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups(spec["groups"])
    os.setgid(spec["group"])
    os.setuid(spec["user"])
    if spec["is_no_new_privileges"]:
        check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    # Changing the user forgets it, so it is said here and not before.
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def become_program(spec: ContainerSpec, report: int) -> None:
    """Process 1: never returns. An error goes to ``report``, which closes by itself when the program has begun."""
    try:
        log = os.open(spec["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        nothing = os.open("/dev/null", os.O_RDONLY)
        socket.sethostname(spec["hostname"])
        build_root(spec)
        enter_root(spec["root"])
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        drop_rights(spec)
        os.chdir(spec["working_directory"])
        os.umask(0o022)
        os.execvpe(spec["command"][0], spec["command"], spec["environment"])
    except BaseException as error:
        os.write(report, f"{type(error).__name__}: {error}".encode())
    os._exit(NOT_STARTED)


def main(path: str, lab: int) -> int:
    """Start the container, wait for its end."""
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != lab:
        return NOT_STARTED
    with open(path) as file:
        spec: ContainerSpec = json.load(file)
    network = os.open(spec["network"], os.O_RDONLY)
    check(libc.setns(network, CLONE_NEWNET), "setns")
    os.close(network)
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC), "unshare")
    told, report = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        become_program(spec, report)
    os.close(report)
    with os.fdopen(told) as errors:
        error = errors.read()
    print(json.dumps({"error": error} if error else {"pid": child}), flush=True)
    _, status = os.waitpid(child, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
