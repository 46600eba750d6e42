"""What a build of the image that fails leaves behind: nothing."""

import os
import subprocess
from pathlib import Path

import pytest

from prerequisites import missing_root
from tests.helm.image_build import discard, run
from tests.support.clusters.live_cluster import eventually

pytestmark = pytest.mark.integration


def is_running(pid: int) -> bool:
    """Whether it is there, and not only waits to be counted."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return told.rpartition(")")[2].split()[0] != "Z"


def test_a_step_that_takes_too_long_leaves_no_process(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        run("sh", "-c", f"sleep 1000 & echo $! > {told}; wait", within_s=2)
    eventually(lambda: not is_running(int(told.read_text(encoding="utf-8"))))


def test_a_step_that_fails_says_what_it_said() -> None:
    with pytest.raises(RuntimeError, match=r"exit 3\nfirst\nthen\n$"):
        run("sh", "-c", "echo first; echo then >&2; exit 3")


@pytest.mark.skipif(bool(missing_root()), reason="mounts need root")
def test_what_a_build_has_left_mounted_goes_with_its_folder(tmp_path: Path) -> None:
    work, kept = tmp_path / "work", tmp_path / "kept"
    for place in (work / "store", work / "store" / "merged", kept):
        place.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", str(place))
        place.joinpath("merged").mkdir()
    discard(work)
    assert not work.exists()
    assert os.path.ismount(kept)
    discard(kept)
