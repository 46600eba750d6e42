"""The main job, shortened: every record comes back although a leader dies."""

import gzip
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration


def demo(directory, *words):
    command = [sys.executable, "-m", "loadtest.demo", "--directory", str(directory), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_flights_come_back_once_and_in_order(tmp_path):
    done = demo(tmp_path, "--records", "30000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30,000 records" in done.stdout
    assert "missing / doubled / foreign  0 / 0 / 0" in done.stdout
    assert "a leader, with -9" in done.stderr
    assert "is back and ready" in done.stderr


def test_any_file_is_written_a_record_a_line(tmp_path):
    path = tmp_path / "lines.gz"
    path.write_bytes(gzip.compress(b"".join(b"line %d \xff\n" % (i % 50) for i in range(2000))))
    done = demo(tmp_path / "run", "--input", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2,000 records" in done.stdout


def test_an_input_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "empty"
    path.touch()
    done = demo(tmp_path / "run", "--input", str(path))
    assert done.returncode == 2
    assert done.stderr == f"demo: {path} has no lines\n"


@pytest.mark.parametrize(
    ("number", "told"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")]
)
def test_a_signal_ends_it_and_its_nodes_in_a_line(tmp_path, number, told):
    command = [sys.executable, "-u", "-m", "loadtest.demo", "--directory", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("starting three nodes")
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert error.splitlines()[-1] == f"demo: {told}"
    assert "Traceback" not in error
