"""One release has one version: every file that names it names the same one."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
NUMBER = r"(\d+\.\d+\.\d+\w*)"
PLACES = {
    "node/pyproject.toml": (rf'^version = "{NUMBER}"', rf"milena\[node\]=={NUMBER}"),
    "helm/milena/Chart.yaml": (rf"^version: {NUMBER}", rf"^appVersion: {NUMBER}"),
    "Dockerfile": (rf"milena:{NUMBER}", rf"^ARG VERSION={NUMBER}"),
    "compose.yaml": (rf"--tag milena:{NUMBER}", rf"image: milena:{NUMBER}"),
    "README.md": (rf"milena:{NUMBER}",),
    "docs/kubernetes.md": (rf"milena:{NUMBER}",),
    "docs/bare-metal.md": (rf"^ln .* /opt/milena-{NUMBER} /opt/milena\nuseradd",),
}
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PLACES)
def test_every_place_names_the_version(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for pattern in PLACES[name]:
        found = re.findall(pattern, text, re.MULTILINE)
        assert found, pattern
        assert set(found) == {VERSION}


def test_no_other_file_has_a_tag_of_the_image():
    files = [
        *ROOT.glob("*"),
        *(ROOT / "docs").glob("*.md"),
        *(path for path in (ROOT / "helm").rglob("*") if path.is_file()),
    ]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if path.is_file() and re.search(rf"milena:{NUMBER}".encode(), path.read_bytes())
    }
    assert found - {"CONTRIBUTING.md"} <= set(PLACES)


def test_the_newest_section_of_the_changelog_is_of_this_version():
    headings = re.findall(r"^## (.*)$", CHANGES, re.MULTILINE)
    assert re.fullmatch(
        rf"{re.escape(VERSION)} (\(not released yet\)|- \d{{4}}-\d\d-\d\d)", headings[0]
    )
