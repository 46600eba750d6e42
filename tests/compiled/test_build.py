"""What is compiled, when, and what a machine does that cannot compile."""

import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError

import pytest
from click.testing import CliRunner

import build_support
from node import cli


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


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    """No compiled trees, and a test that starts a build fails."""
    monkeypatch.delenv("MILENA_PURE", raising=False)
    monkeypatch.setattr(build_support, "TREES", tmp_path / "trees")
    monkeypatch.setattr(build_support, "WORK", tmp_path / "work")
    monkeypatch.setattr(build_support, "_build", lambda: pytest.fail("a compiler starts"))


def test_programs_run_from_the_sources_at_once_without_a_compiled_tree(no_compiler, capsys):
    assert build_support.chosen_environment() == {}
    assert "make compiled" in capsys.readouterr().err
    assert not build_support.WORK.exists()


def test_programs_run_on_a_compiled_tree_of_the_present_sources_only(no_compiler, monkeypatch):
    tree = build_support.TREES / build_support.state_of(build_support.ROOT)
    tree.mkdir(parents=True)
    assert build_support.chosen_environment() == build_support.environment_of(tree)
    monkeypatch.setattr(build_support, "state_of", lambda _: "changed")
    assert build_support.chosen_environment() == {}


def test_an_environment_without_mypy_has_no_compiled_tree(no_compiler, monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    build_support.TREES.mkdir()
    monkeypatch.setattr(build_support, "version", version)
    assert build_support.chosen_environment() == {}


def test_milena_dev_starts_its_nodes_without_a_compiler(no_compiler, monkeypatch, tmp_path):
    planned = []

    async def run_nodes(plans, **_):
        planned.extend(plans)
        return 0

    monkeypatch.setattr(cli.dev_cluster, "run_nodes", run_nodes)
    monkeypatch.setattr(cli.dev_cluster, "check_ports", lambda **_: None)
    done = CliRunner().invoke(cli.dev, ["--nodes", "1", "--data-dir", str(tmp_path / "data")])
    assert done.exit_code == 0, done.output
    assert [plan.chosen for plan in planned] == [{}]


@pytest.mark.parametrize(("verb", "may_compile"), [("run", False), ("measure", True)])
def test_only_a_measurement_compiles_first(monkeypatch, verb, may_compile):
    asked, started = [], []

    def chosen(*, may_compile):
        asked.append(may_compile)
        return {"PYTHONPATH": "tree"}

    monkeypatch.setattr(build_support, "chosen_environment", chosen)
    monkeypatch.setattr("os.chdir", lambda _: None)
    monkeypatch.setattr("os.execve", lambda *command: started.append(command))
    build_support.main([verb, "-m", "milena"])
    ((_, command, environment),) = started
    assert (asked, command[1:], environment["PYTHONPATH"]) == (
        [may_compile],
        ["-m", "milena"],
        "tree",
    )


def test_measurements_run_from_the_sources_where_nothing_can_be_compiled(monkeypatch, capsys):
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.delenv("MILENA_PURE", raising=False)
    assert build_support.chosen_environment(may_compile=True) == {}
    assert "pure, not compiled: there is no C compiler" in capsys.readouterr().err


def test_measurements_run_from_the_sources_where_nothing_can_be_written(
    monkeypatch, capsys, tmp_path
):
    (tmp_path / "build").write_text("in the way", encoding="utf-8")
    monkeypatch.setattr(build_support, "obstacle", lambda: None)
    monkeypatch.setattr(build_support, "WORK", tmp_path / "build" / "work")
    monkeypatch.delenv("MILENA_PURE", raising=False)
    assert build_support.chosen_environment(may_compile=True) == {}
    told = capsys.readouterr().err
    assert told == f"pure, not compiled: cannot write {build_support.WORK}: Not a directory\n"


def test_a_build_shows_its_progress_and_keeps_the_compilers_output_for_an_error(capsys):
    lines = ["a warning\n", "compiling: 50 %\n", "another\n"]
    assert build_support._follow(lines) == "a warning\nanother\n"
    assert capsys.readouterr().err == "compiling: 50 %\n"


def files_of(folder, sizes):
    """Files with these sizes, named by their number."""
    files = [folder / f"{number}.c" for number, _ in enumerate(sizes)]
    for file, size in zip(files, sizes, strict=True):
        file.write_bytes(b" " * size)
    return [str(file) for file in files]


def test_files_are_compiled_side_by_side_the_largest_first(tmp_path, capsys):
    sources = files_of(tmp_path, [1, 40, 20, 39])
    started, all_run = [], threading.Barrier(2, timeout=60)

    def compile_files(paths, *, output_dir):
        started.extend(paths)
        all_run.wait()
        return [f"{output_dir}/{path}.o" for path in paths]

    compiled = build_support.spread(compile_files, 2)(sources, output_dir="out")
    assert compiled == [f"out/{source}.o" for source in sources], "in the order of the sources"
    assert {*started[:2]} == {sources[1], sources[3]}
    assert capsys.readouterr().out.splitlines()[-1] == "compiling: 100 %"


def test_an_error_of_one_file_ends_the_build_and_leaves_the_rest_out(monkeypatch, tmp_path):
    sources = files_of(tmp_path, [9, 8, 7, 6])
    started, is_over = [], threading.Event()
    shutdown = ThreadPoolExecutor.shutdown

    def shut(pool, *, wait=True, cancel_futures=False):
        shutdown(pool, wait=False, cancel_futures=cancel_futures)
        is_over.set()
        shutdown(pool, wait=wait)

    def compile_files(paths):
        started.extend(paths)
        if paths == sources[:1]:
            raise OSError("refused")
        assert is_over.wait(60)
        return []

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shut)
    with pytest.raises(OSError, match="refused"):
        build_support.spread(compile_files, 1)(sources)
    assert not {*started} & {*sources[2:]}, "only a file that had started"


def test_measurements_run_from_the_sources_when_asked_to(monkeypatch):
    monkeypatch.setenv("MILENA_PURE", "1")
    assert build_support.chosen_environment() == {}
    assert build_support.chosen_environment(may_compile=True) == {}


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
