"""Builds the image of the Dockerfile without a container engine's daemon and without network in the build.

The base is a Debian of this machine's own release, which ``mmdebstrap`` makes; the wheels are brought by this
machine's pip and copied in; ``buildah`` builds in a chroot with a store of its own; ``umoci`` unpacks what came
out. Needs root.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from prerequisites import IMAGE as IMAGE_TOOLS
from prerequisites import missing_programs, missing_root
from tests.helm.charts import ROOT

BASE = "localhost/python-base:test"
BUILD_BASE = "localhost/python-build:test"
IMAGE = "localhost/milena:test"
VERSION = "9.9.9"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
COMPILER = ("gcc", "libc6-dev", "python3-dev")
"""What the stage that makes wheels has besides."""
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
LEFT_BEHIND = {".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", "build"}
"""Folders of a work tree that are too large to copy; the rest is copied, for .dockerignore to leave out."""

SECRET_FILE = "credentials.env"
STEP_S_MAX = 1_800.0
"""Of one step: compiling the hot modules takes minutes of all cores, and a machine may have other work."""
DATA = "/var/lib/milena"

BASE_RECIPE = f"""FROM scratch
ADD base.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LABEL base="{platform.python_version()}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image as a layout of the Open Container Initiative, and unpacked."""

    layout: Path
    bundle: Path

    @property
    def root(self) -> Path:
        """The files of the image."""
        return self.bundle / "rootfs"

    def inspect(self) -> dict[str, Any]:
        """Its configuration, as skopeo tells it."""
        out = run("skopeo", "inspect", "--config", f"oci:{self.layout}:milena")
        return cast("dict[str, Any]", json.loads(out))


def run(*command: str, cwd: Path | None = None, within_s: float = STEP_S_MAX) -> str:
    """Run one step of the build; its standard output. Nothing that it has started outlives it.

    Raises:
        RuntimeError: It failed; the message ends with what it said.
        TimeoutExpired: It took too long.
    """
    with subprocess.Popen(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as step:
        try:
            out, err = step.communicate(timeout=within_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(step.pid, signal.SIGKILL)
    if step.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {step.returncode}\n{(out + err)[-4000:]}")
    return out


def discard(work: Path) -> None:
    """Remove all that a build has made, and unmount what one that failed has left mounted there."""
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    for place in reversed([line.split()[1] for line in mounts]):
        if Path(place).is_relative_to(work):
            run("umount", place)
    shutil.rmtree(work)


def build_image(work: Path) -> BuiltImage:
    """Base, wheels, image, unpacked; all of it under ``work``, but for what buildah unmounts at its end."""
    buildah = _buildah(work)
    build = (*buildah, "bud", "--isolation", "chroot", "--pull-never", "--quiet")
    run(*build, "--tag", BASE, str(_base_context(work / "base", PACKAGES)))
    run(*build, "--tag", BUILD_BASE, str(_base_context(work / "build", (*PACKAGES, *COMPILER))))
    context = _context(work / "context")
    _fetch_wheels(context)
    run(
        *(
            *build,
            "--build-arg",
            f"PYTHON_IMAGE={BASE}",
            "--build-arg",
            f"BUILD_IMAGE={BUILD_BASE}",
        ),
        *("--build-arg", f"VERSION={VERSION}", "--build-arg", "MILENA_COMPILED=1"),
        *("--tag", IMAGE, str(context)),
    )
    layout, bundle = work / "layout", work / "bundle"
    run(*buildah, "push", "--quiet", IMAGE, f"oci:{layout}:milena")
    run("umoci", "unpack", "--image", f"{layout}:milena", str(bundle))
    return BuiltImage(layout=layout, bundle=bundle)


def _buildah(work: Path) -> tuple[str, ...]:
    """Buildah with a store of its own; on overlays where they can be mounted, else on copies, which takes minutes."""
    store = ("buildah", "--root", str(work / "store"), "--runroot", str(work / "run"))
    try:
        run(*store, "--storage-driver", "overlay", "info")
    except RuntimeError:
        return (*store, "--storage-driver", "vfs")
    return (*store, "--storage-driver", "overlay")


def _base_context(folder: Path, packages: Sequence[str]) -> Path:
    folder.mkdir(parents=True)
    run(
        *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
        *(platform.freedesktop_os_release()["VERSION_CODENAME"], str(folder / "base.tar")),
    )
    (folder / "Dockerfile").write_text(BASE_RECIPE, encoding="utf-8")
    return folder


def _context(folder: Path) -> Path:
    """A copy of the work tree with something in it that must not get into an image."""
    shutil.copytree(
        ROOT,
        folder,
        symlinks=True,
        ignore=lambda at, names: LEFT_BEHIND & set(names) if at == str(ROOT) else set(),
    )
    (folder / SECRET_FILE).write_text("PASSWORD=hunter2\n", encoding="utf-8")
    (folder / "node" / SECRET_FILE).write_text("PASSWORD=hunter2\n", encoding="utf-8")
    return folder


def _fetch_wheels(context: Path) -> None:
    wheels = context / "build" / "wheelhouse"
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
    lock = ("--constraint", "requirements.lock", "--wheel-dir", str(wheels))
    run(*pip, *lock, ".[node,kafka]", "mypy", "setuptools>=77", cwd=context)
    # Only what the image is to build by itself is taken away again.
    for built in wheels.glob("milena-*.whl"):
        built.unlink()
    for leftover in (context / "build" / "lib", *context.glob("build/bdist*")):
        shutil.rmtree(leftover, ignore_errors=True)


def missing_tools() -> list[str]:
    """What this machine lacks to build the image."""
    return [*missing_root(), *missing_programs(*IMAGE_TOOLS)]
