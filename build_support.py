"""The hot modules as C extensions: which modules they are, whether this machine can compile, and a tree with them.

The Python source is the reference and runs without compilation; wheels contain nothing else. Only a command that asks
for the compiled tree compiles:

    python build_support.py                            builds the tree and prints its path; exit 1 if it cannot
    python build_support.py extensions DIRECTORY       builds the tree, and copies its extensions to installed packages
    python build_support.py measure -m loadtest.bench  builds the tree if this machine can, and runs Python on it
    python build_support.py run -m loadtest.demo       runs Python at once: on the tree of the present sources if it
                                                       exists, or else on the sources

With MILENA_PURE=1, the last two run on the sources. Compiled files never lie next to the sources: the tree is a copy
that contains the sources too.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent
TREES = ROOT / "build" / "compiled"
"""One tree for each state of the sources, named by a hash: a new build does not disturb programs of an old one."""
TREES_KEPT = 3
WORK = ROOT / "build" / "mypyc"
"""Caches of the compilers, which make the next build shorter."""
ASSETS = "http_api/console/static"
"""Files of a package that are not modules."""
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
"""Environment variable of programs that run from a tree; with 1 they run from the sources."""
PROGRESS = "compiling: "
"""Start of a progress line. The rest of the compilers' output matters only if they fail."""
TOLD_EVERY_PERCENT = 5
GROUP = "milena"
"""Name of the compiled code; the library with all of it is called milena__mypyc."""


class BuildError(Exception):
    """The tree could not be built; the message says why."""


def patterns() -> Sequence[str]:
    """Return the patterns of modules to compile, from pyproject.toml; one with an exclamation mark excludes modules."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: Sequence[str] = project["tool"]["milena"]["compiled"]
    return found


def compiled_modules() -> list[str]:
    """Return the paths of the modules to compile, relative to the root.

    Raises:
        BuildError: a pattern matches no module.
    """
    chosen: set[str] = set()
    for pattern in patterns():
        found = {p.relative_to(ROOT).as_posix() for p in ROOT.glob(pattern.removeprefix("!"))}
        if not found:
            raise BuildError(f"pyproject.toml: [tool.milena] compiled: {pattern} fits no module")
        chosen = chosen - found if pattern.startswith("!") else chosen | found
    # A package's __init__.py contains only a docstring, and would turn its folder into a library.
    return sorted(path for path in chosen if not path.endswith("__init__.py"))


def obstacle() -> str | None:
    """Return why this machine cannot compile; None if it can."""
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
    """Compile the modules below the working directory: mypyc translates them to C, compilers build extensions.

    There is one C file for each module, so that all cores have work. The code is as fast as from one large file: the
    functions are exported, and gcc does not inline exported functions of position-independent code.
    """
    from mypyc.build import mypycify  # noqa: PLC0415 - only where something is compiled
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    options = ("--config-file", "pyproject.toml", "--cache-dir", str(work / "cache"))
    paths, cores = compiled_modules(), cores_of_process()
    print(f"{PROGRESS}translating {len(paths)} modules to C", flush=True)
    modules = mypycify(
        [*options, *paths],
        group_name=GROUP,
        multi_file=True,
        target_dir=str(work / "c"),
        # Debug symbols would be four fifths of the size.
        debug_level="0",
    )

    class BuildOnAllCores(build_ext):  # type: ignore[misc]  # setuptools has no types
        """Compiles the files of an extension side by side; setuptools does this only for whole extensions."""

        def build_extensions(self) -> None:
            self.compiler.compile = spread(self.compiler.compile, cores)
            super().build_extensions()

    command = BuildOnAllCores(Distribution({"name": GROUP, "ext_modules": modules}))
    command.build_lib, command.build_temp = str(library), str(work / "o")
    command.ensure_finalized()
    command.parallel = cores
    print(f"{PROGRESS}C on {cores} cores", flush=True)
    command.run()


def cores_of_process() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # only Linux has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def spread(compile_files: Callable[..., list[str]], cores: int) -> Callable[..., list[str]]:
    """Return the ``compile`` method of a compiler of setuptools that compiles ``cores`` files at the same time.

    The largest files come first, so that the cores finish at about the same time. The method prints its progress.
    """

    def compile_all(sources: Sequence[str], **options: object) -> list[str]:
        sizes = {source: os.path.getsize(source) for source in sources}
        done, told, total = 0, 0, sum(sizes.values())
        objects: dict[str, list[str]] = {}
        with ThreadPoolExecutor(cores) as pool:
            running = {
                pool.submit(compile_files, [source], **options): source
                for source in sorted(sources, key=lambda source: -sizes[source])
            }
            try:
                for one in as_completed(running):
                    source = running[one]
                    objects[source] = one.result()
                    done += sizes[source]
                    percent = 100 * done // total
                    is_due = percent >= told + TOLD_EVERY_PERCENT or done == total
                    if len(sources) > 1 and is_due:
                        told = percent
                        print(f"{PROGRESS}{percent} %", flush=True)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return [file for source in sources for file in objects[source]]

    return compile_all


def ensure_tree() -> Path:
    """Return the path of the tree; build it if the sources have changed.

    Raises:
        BuildError: this machine cannot compile, a compiler failed, or the build folder cannot be written. The
            compiler's output is on standard error.
    """
    reason = obstacle()
    if reason is not None:
        raise BuildError(reason)
    try:
        return _tree()
    except OSError as error:
        raise BuildError(f"cannot write {error.filename or WORK}: {error.strerror}") from error


def present_tree() -> Path | None:
    """Return the path of the tree of the present sources, if it was built before."""
    try:
        tree = TREES / state_of(ROOT) if TREES.is_dir() else None
    except PackageNotFoundError:  # without mypy, nothing was compiled here
        return None
    if tree is None or not tree.is_dir():
        return None
    with suppress(OSError):
        _mark_used(tree)
    return tree


def _mark_used(tree: Path) -> None:
    """Set the tree's time, by which the oldest trees are removed."""
    now = time.time_ns()
    os.utime(tree, ns=(now, now))


def _tree() -> Path:
    WORK.mkdir(parents=True, exist_ok=True)
    with _alone():
        tree = TREES / state_of(ROOT)
        if not tree.exists():
            tree = _build()
        _mark_used(tree)
        for old in sorted(TREES.iterdir(), key=lambda path: -path.stat().st_mtime_ns)[TREES_KEPT:]:
            shutil.rmtree(old)
    return tree


def _build() -> Path:
    """Build a tree from a copy of the sources, which may change during the build."""
    print(
        "compiling the hot modules, once for this state of the sources: one to six minutes",
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
        assert compilers.stdout is not None
        said = _follow(compilers.stdout)
    if compilers.returncode:
        sys.stderr.write(said)
        raise BuildError(f"the compilers refused (exit {compilers.returncode})")
    TREES.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(tree, ignore_errors=True)
    new.rename(tree)
    return tree


def _follow(output: Iterable[str]) -> str:
    """Pass progress lines on to standard error; return the other lines when the output ends."""
    said = []
    for line in output:
        if line.startswith(PROGRESS):
            sys.stderr.write(line)
        else:
            said.append(line)
    return "".join(said)


def state_of(root: Path) -> str:
    """Return a hash of all inputs of a build."""
    whole = hashlib.sha256(f"{sys.version} {platform.machine()} {version('mypy')}".encode())
    for path in _inputs(root):
        text = path.read_bytes()
        whole.update(f"{path.relative_to(root).as_posix()} {len(text)} ".encode() + text)
    return whole.hexdigest()[:12]


def _inputs(root: Path) -> list[Path]:
    """Return the files of all packages, and the files that define the build."""
    modules = (path for package in PACKAGES for path in (root / package).rglob("*.py"))
    assets = (path for path in (root / ASSETS).rglob("*") if path.is_file())
    return sorted({*modules, *assets, *(root / name for name in BUILT_BY)})


@contextmanager
def _alone() -> Iterator[None]:
    """Hold a lock, so that two builds never run at the same time."""
    with (WORK / "lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment_of(tree: Path) -> dict[str, str]:
    """Return variables that make Python and its child processes load packages from a tree, the rest from the root.

    Without PYTHONSAFEPATH, the working directory, which is often the root, would come first.
    """
    return {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT}", "PYTHONSAFEPATH": "1"}


def chosen_environment(*, may_compile: bool = False) -> dict[str, str]:
    """Return the environment of the compiled tree; empty for the sources.

    The sources are chosen if ``MILENA_PURE=1`` asks for them, or if there is no compiled tree of their present state.
    With ``may_compile``, a missing tree is built first, if this machine can.
    """
    if os.environ.get(PURE) == "1":
        print(f"pure: {PURE}=1", file=sys.stderr)
        return {}
    try:
        tree = ensure_tree() if may_compile else present_tree()
    except BuildError as error:
        print(f"pure, not compiled: {error}", file=sys.stderr)
        return {}
    if tree is None:
        print("pure: no compiled tree of these sources (make compiled builds one)", file=sys.stderr)
        return {}
    return environment_of(tree)


def copy_extensions(directory: Path) -> None:
    """Copy the tree's extensions into the folder with the installed packages."""
    tree = ensure_tree()
    for extension in tree.rglob("*.so"):
        copy = directory / extension.relative_to(tree)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(extension, copy)


def main(arguments: Sequence[str]) -> int:
    """Build the tree, or run Python on it; return the exit code."""
    try:
        match arguments:
            case ["run" | "measure" as verb, *command]:
                os.chdir(ROOT)
                chosen = chosen_environment(may_compile=verb == "measure")
                environment = {**os.environ, **chosen}
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
