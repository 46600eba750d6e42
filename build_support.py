"""The hot modules as extensions in C: which they are, whether this machine can make them, and a tree that has them.

The source is the reference and runs as it is; wheels hold nothing else. Programs that are to be quick (the demo, load
tests, measurements, the image) take the extensions from here:

    python build_support.py                        makes the tree and prints where it is; exit 1 where it cannot be made
    python build_support.py extensions DIRECTORY   and copies its extensions beside installed packages, if it can
    python build_support.py run -m loadtest.bench  Python on that tree; on the sources with MILENA_PURE=1, or where this
                                                   machine cannot compile

Nothing compiled ever lies beside the sources: the tree is a copy, which holds them too.
"""

import fcntl
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent
TREES = ROOT / "build" / "compiled"
"""One for each state of the sources, by its hash: what runs from one is not disturbed when the next is made."""
TREES_KEPT = 3
WORK = ROOT / "build" / "mypyc"
"""What the compilers remember, so that the next build is shorter."""
ASSETS = "http_api/console/static"
"""Files that are no modules, and belong to a package all the same."""
BUILT_BY = ("build_support.py", "pyproject.toml")
PACKAGES = (
    "http_api",
    "loadtest",
    "milena",
    "node",
    "pyspark_milena",
    "raft_meta",
    "spark_ext",
    "storage",
)
PURE = "MILENA_PURE"
"""Of the programs that are run from a tree: 1, from the sources."""
TOLD_EVERY_S = 30
"""While the compilers work, which say nothing until they are done."""
GROUP = "milena"
"""The library that holds all of the compiled code is called milena__mypyc."""


class BuildError(Exception):
    """The tree could not be made; the message says why."""


def patterns() -> Sequence[str]:
    """Of the modules to compile, from pyproject.toml; one behind an exclamation mark takes modules out again."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: Sequence[str] = project["tool"]["milena"]["compiled"]
    return found


def compiled_modules() -> list[str]:
    """Paths of the modules to compile, from the root.

    Raises:
        BuildError: a pattern fits nothing any more.
    """
    chosen: set[str] = set()
    for pattern in patterns():
        found = {p.relative_to(ROOT).as_posix() for p in ROOT.glob(pattern.removeprefix("!"))}
        if not found:
            raise BuildError(f"pyproject.toml: [tool.milena] compiled: {pattern} fits no module")
        chosen = chosen - found if pattern.startswith("!") else chosen | found
    # A package's own file is a docstring, and would make a library of its folder.
    return sorted(path for path in chosen if not path.endswith("__init__.py"))


def obstacle() -> str | None:
    """Why this machine cannot compile; None: it can."""
    if platform.python_implementation() != "CPython":
        return "only CPython runs what mypyc makes"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler}): apt-get install gcc"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's headers are not installed: apt-get install python3-dev"
    for module in ("mypyc", "setuptools"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: pip install {module.replace('mypyc', 'mypy')}"
    return None


def compile_into(library: Path, work: Path) -> None:
    """Let mypyc make C of the modules below the working directory, and the compiler extensions of that."""
    from mypyc.build import mypycify  # noqa: PLC0415 - only where something is compiled
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    options = ("--config-file", "pyproject.toml", "--cache-dir", str(work / "cache"))
    modules = mypycify(
        [*options, *compiled_modules()],
        group_name=GROUP,
        target_dir=str(work / "c"),
        # Symbols for a debugger are four fifths of the size.
        debug_level="0",
    )
    command = build_ext(Distribution({"name": GROUP, "ext_modules": modules}))
    command.build_lib, command.build_temp = str(library), str(work / "o")
    command.ensure_finalized()
    command.run()


def ensure_tree() -> Path:
    """The tree, made anew if anything has changed since it was.

    Raises:
        BuildError: this machine cannot, a compiler refused, or nothing can be written beside the sources; what a
            compiler said is on standard error.
    """
    reason = obstacle()
    if reason is not None:
        raise BuildError(reason)
    try:
        return _tree()
    except OSError as error:
        raise BuildError(f"cannot write {error.filename or WORK}: {error.strerror}") from error


def _tree() -> Path:
    WORK.mkdir(parents=True, exist_ok=True)
    with _alone():
        tree = TREES / state_of(ROOT)
        if not tree.exists():
            tree = _build()
        now = time.time_ns()
        os.utime(tree, ns=(now, now))
        for old in sorted(TREES.iterdir(), key=lambda path: -path.stat().st_mtime_ns)[TREES_KEPT:]:
            shutil.rmtree(old)
    return tree


def _build() -> Path:
    """Make a tree of a copy of the sources, which may change meanwhile."""
    print(
        "compiling the hot modules, once for this state of the sources: two to ten minutes "
        f"({PURE}=1 runs from the sources at once)",
        file=sys.stderr,
    )
    new = WORK / "new"
    shutil.rmtree(new, ignore_errors=True)
    for path in _inputs(ROOT):
        copy = new / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    tree = TREES / state_of(new)
    with subprocess.Popen(
        [sys.executable, "build_support.py", "compile", str(new), str(WORK)],
        cwd=new,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as compilers:
        said = _wait(compilers)
    if compilers.returncode:
        sys.stderr.write(said)
        raise BuildError(f"the compilers refused (exit {compilers.returncode})")
    TREES.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(tree, ignore_errors=True)
    new.rename(tree)
    return tree


def _wait(process: "subprocess.Popen[str]") -> str:
    """What a process says until it ends; a line now and then tells that it has not."""
    waited_s = 0
    while True:
        try:
            return process.communicate(timeout=TOLD_EVERY_S)[0]
        except subprocess.TimeoutExpired:
            waited_s += TOLD_EVERY_S
            print(f"still compiling, {waited_s} s so far", file=sys.stderr)


def state_of(root: Path) -> str:
    """A hash of everything that a build depends on."""
    whole = hashlib.sha256(f"{sys.version} {platform.machine()} {version('mypy')}".encode())
    for path in _inputs(root):
        text = path.read_bytes()
        whole.update(f"{path.relative_to(root).as_posix()} {len(text)} ".encode() + text)
    return whole.hexdigest()[:12]


def _inputs(root: Path) -> list[Path]:
    """The files of all packages, and those that say how they are built."""
    modules = (path for package in PACKAGES for path in (root / package).rglob("*.py"))
    assets = (path for path in (root / ASSETS).rglob("*") if path.is_file())
    return sorted({*modules, *assets, *(root / name for name in BUILT_BY)})


@contextmanager
def _alone() -> Iterator[None]:
    """No two builds at the same time."""
    with (WORK / "lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment_of(tree: Path) -> dict[str, str]:
    """Variables under which Python, and whatever it starts, takes the packages from a tree and the rest from the root.

    Without PYTHONSAFEPATH the working directory, which is often the root, would come first.
    """
    return {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT}", "PYTHONSAFEPATH": "1"}


def chosen_environment() -> dict[str, str]:
    """Of the compiled tree, if it can be had and is not declined; nothing else: the sources."""
    if os.environ.get(PURE) == "1":
        print(f"pure: {PURE}=1", file=sys.stderr)
        return {}
    try:
        return environment_of(ensure_tree())
    except BuildError as error:
        print(f"pure, not compiled: {error}", file=sys.stderr)
        return {}


def copy_extensions(directory: Path) -> None:
    """Copy the tree's extensions to where its packages are installed."""
    tree = ensure_tree()
    for extension in tree.rglob("*.so"):
        copy = directory / extension.relative_to(tree)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(extension, copy)


def main(arguments: Sequence[str]) -> int:
    """Make the tree, or run Python on it."""
    try:
        match arguments:
            case ["run", *command]:
                os.chdir(ROOT)
                environment = {**os.environ, **chosen_environment()}
                os.execve(sys.executable, [sys.executable, *command], environment)
            case ["extensions", directory]:
                copy_extensions(Path(directory))
            case ["compile", library, work]:
                compile_into(Path(library), Path(work))
            case _:
                print(ensure_tree())
    except BuildError as error:
        print(f"not compiled: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
