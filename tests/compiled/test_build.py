"""What is compiled, when, and what a machine does that cannot compile."""

import subprocess

import pytest

import build_support


def test_a_tree_is_made_once_for_a_state_of_the_sources(monkeypatch, tmp_path):
    made = []

    def build():
        tree = build_support.TREES / build_support.state_of(build_support.ROOT)
        tree.mkdir(parents=True)
        made.append(tree.name)
        return tree

    monkeypatch.setattr(build_support, "obstacle", lambda: None)
    monkeypatch.setattr(build_support, "TREES", tmp_path / "trees")
    monkeypatch.setattr(build_support, "WORK", tmp_path / "work")
    monkeypatch.setattr(build_support, "_build", build)
    for state in ("a", "a", "b", "a", "c", "d"):
        monkeypatch.setattr(build_support, "state_of", lambda _, state=state: state)
        assert build_support.ensure_tree().name == state
    assert made == ["a", "b", "c", "d"]
    left = {path.name for path in (tmp_path / "trees").iterdir()}
    assert left == {"a", "c", "d"}, "the one that was used longest ago is gone"


def test_the_state_of_the_sources_changes_with_any_of_them(tmp_path):
    (tmp_path / "node").mkdir()
    for name in build_support.BUILT_BY:
        (tmp_path / name).write_bytes((build_support.ROOT / name).read_bytes())
    source = tmp_path / "node" / "a.py"
    source.write_text("A = 1\n", encoding="utf-8")
    first = build_support.state_of(tmp_path)
    assert build_support.state_of(tmp_path) == first
    source.write_text("A = 2\n", encoding="utf-8")
    second = build_support.state_of(tmp_path)
    source.rename(source.with_name("b.py"))
    assert len({first, second, build_support.state_of(tmp_path)}) == 3


def test_a_machine_without_a_compiler_is_told_so(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -pthread")
    assert build_support.obstacle() == (
        "there is no C compiler (no-such-compiler): apt-get install gcc"
    )
    with pytest.raises(build_support.BuildError, match="no-such-compiler"):
        build_support.ensure_tree()


def test_measurements_run_from_the_sources_where_nothing_can_be_compiled(monkeypatch, capsys):
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.delenv("MILENA_PURE", raising=False)
    assert build_support.chosen_environment() == {}
    assert "pure, not compiled: there is no C compiler" in capsys.readouterr().err


def test_programs_run_from_the_sources_where_nothing_can_be_written(monkeypatch, capsys, tmp_path):
    (tmp_path / "build").write_text("in the way", encoding="utf-8")
    monkeypatch.setattr(build_support, "obstacle", lambda: None)
    monkeypatch.setattr(build_support, "WORK", tmp_path / "build" / "work")
    monkeypatch.delenv("MILENA_PURE", raising=False)
    assert build_support.chosen_environment() == {}
    told = capsys.readouterr().err
    assert told == f"pure, not compiled: cannot write {build_support.WORK}: Not a directory\n"


def test_who_waits_for_the_compilers_is_told_now_and_then(capsys):
    class Compilers:
        """Stand for a process that is done at the third look."""

        looks = 0

        def communicate(self, timeout):
            self.looks += 1
            if self.looks < 3:
                raise subprocess.TimeoutExpired("compile", timeout)
            return "said", None

    assert build_support._wait(Compilers()) == "said"
    assert capsys.readouterr().err == (
        "still compiling, 30 s so far\nstill compiling, 60 s so far\n"
    )


def test_measurements_run_from_the_sources_when_asked_to(monkeypatch):
    monkeypatch.setenv("MILENA_PURE", "1")
    assert build_support.chosen_environment() == {}


def test_a_pattern_that_fits_nothing_is_an_error(monkeypatch):
    monkeypatch.setattr(
        build_support, "patterns", lambda: ["milena/model/codecs.py", "storage/no.py"]
    )
    with pytest.raises(build_support.BuildError, match=r"storage/no\.py fits no module"):
        build_support.compiled_modules()


def test_a_pattern_behind_an_exclamation_mark_takes_modules_out(monkeypatch):
    monkeypatch.setattr(
        build_support, "patterns", lambda: ["storage/log/*.py", "!storage/log/t*.py"]
    )
    modules = build_support.compiled_modules()
    assert "storage/log/partition_log.py" in modules
    assert "storage/log/tickets.py" not in modules
    assert "storage/log/__init__.py" not in modules
