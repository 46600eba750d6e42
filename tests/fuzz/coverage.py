"""``python -m tests.fuzz.coverage``: atheris looks for inputs that reach new code in every decoder; a line a target.

Each target runs in a process of its own, since libFuzzer ends with it. What it starts from are the sound inputs and
the corpus of the repository; what it finds interesting stays in the working folder, from which ``--keep`` takes the
smallest inputs into the repository. A finding is written beside them, and the exit code is 1.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

WORK = Path("build/fuzz")

KEPT_BYTES_MAX = 4096
KEPT_INPUTS_MAX = 6
"""Of each run and target, in the repository: the tests replay them all."""

INPUT_BYTES_MAX = 16_384


def fuzz_one(name: str, seconds: int) -> None:
    """Fuzz a target in this process, until libFuzzer ends it."""
    import atheris  # noqa: PLC0415 - an optional tool

    with atheris.instrument_imports(
        include=["milena.model", "storage", "raft_meta", "node", "http_api"]
    ):
        # Instrumented as it is loaded.
        from tests.fuzz.targets import corpus_of, run, target_of  # noqa: PLC0415

    target = target_of(name)
    folder = WORK / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate([*target.seeds(), *corpus_of(name)]):
        (folder / f"seed-{number}").write_bytes(seed)

    def once(data: bytes) -> None:
        run(target, data)
        run(target, target.reseal(data))

    options = [
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-artifact_prefix={WORK}/finding-{name}-",
        "-rss_limit_mb=2048",
        "-timeout=20",
        "-print_final_stats=1",
        str(folder),
    ]
    atheris.Setup([sys.argv[0], *options], once)
    atheris.Fuzz()


def fuzz_in_child(name: str, seconds: int) -> bool:
    """The same in a process of its own; True when nothing was found."""
    command = [sys.executable, "-m", "tests.fuzz.coverage", "--target", name, "--here"]
    done = subprocess.run(
        [*command, "--seconds", str(seconds)], capture_output=True, text=True, check=False
    )
    text = done.stdout + done.stderr
    executed = re.search(r"number_of_executed_units: (\d+)", text)
    covered = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text)
    count = int(executed[1]) if executed else 0
    coverage, features, kept = covered[-1] if covered else ("?", "?", "?")
    print(
        f"{name:16} {count:>10,} inputs  coverage {coverage:>5}  features {features:>6}  "
        f"corpus {kept:>5}  {'ok' if done.returncode == 0 else 'FOUND SOMETHING'}",
        flush=True,
    )
    if done.returncode:
        print("\n".join(text.splitlines()[-40:]))
    return done.returncode == 0


def keep(names: list[str]) -> None:
    """Take some of the smallest inputs of the working corpus into the repository."""
    from tests.fuzz.targets import CORPUS, corpus_of  # noqa: PLC0415 - see ``fuzz_one``

    for name in names:
        found = [
            path.read_bytes()
            for path in (WORK / name).glob("*")
            if not path.name.startswith("seed-") and 0 < path.stat().st_size <= KEPT_BYTES_MAX
        ]
        small = sorted({*found} - {*corpus_of(name)}, key=len)
        step = max(1, len(small) // KEPT_INPUTS_MAX)
        with (CORPUS / f"{name}.txt").open("a", encoding="ascii") as file:
            file.writelines(f"{data.hex()}\n" for data in small[::step][:KEPT_INPUTS_MAX])


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", help="only these; all by default")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--here", action="store_true", help="in this process")
    parser.add_argument("--keep", action="store_true", help="take inputs into the repository")
    options = parser.parse_args()
    if options.here:
        fuzz_one(options.target[0], options.seconds)
        return 0
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - see ``fuzz_one``

    names = options.target or [target.name for target in TARGETS]
    are_sound = [fuzz_in_child(name, options.seconds) for name in names]
    if options.keep:
        keep(names)
    print(f"targets {len(names)}, with findings {are_sound.count(False)}")
    return 0 if all(are_sound) else 1


if __name__ == "__main__":
    sys.exit(main())
