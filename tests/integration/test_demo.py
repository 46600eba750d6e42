"""The main job, shortened: every record comes back although a leader dies."""

import gzip
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
