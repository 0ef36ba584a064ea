"""Every example in README, docs and examples runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import command_line
import forked
from fedpca.audit.lying import ATTACKS

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
LYING = ROOT / "examples" / "lying_coordinator.py"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)
RUN_ELSEWHERE = ["across-organizations.md"]  # by test_tutorial_across.py, with processes of its own
REQUIRES = {"use-a-gpu": "torch"}  # which is too large to be among the tools of every developer
WITH_CODE = [
    page for page in PAGES if "```python" in page.read_text() and page.name not in RUN_ELSEWHERE
]


def as_typed(line):
    """The words of a line of a page, with the programs of this environment."""
    program, *words = shlex.split(line)
    programs = {"fedpca": [sys.executable, "-m", "fedpca"], "python": [sys.executable]}
    return [*programs.get(program, [program]), *words]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_one_after_another(page, tmp_path, monkeypatch, capsys):
    if page.stem in REQUIRES:
        pytest.importorskip(REQUIRES[page.stem])
    lacking = tmp_path / "lacking"  # what no installation that a page names brings
    lacking.mkdir()
    (lacking / "pandas.py").write_text("raise ImportError('not installed')")
    monkeypatch.syspath_prepend(lacking)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")  # a real one, so that what it defines can be pickled
    monkeypatch.setitem(sys.modules, "page", module)
    for kind, code in BLOCK.findall(page.read_text()):
        if kind == "python":
            exec(compile(code, str(page), "exec"), module.__dict__)
        elif page.name != "README.md":
            for line in code.splitlines():
                done = forked.run(as_typed(line), capture_output=True, text=True)
                assert done.returncode == 0, (line, done.stderr)


EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {LYING})  # which a test of its own runs


FEWER = {"private_fit": ["--trials", "40"]}  # repetitions, which only make figures steadier


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_examples_run(example):
    command = [sys.executable, "-W", "error", str(example), *FEWER.get(example.stem, [])]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("name", "ratios", "sizes"),
    [("exact", 5, 2), ("streaming", 2, 1), ("personalized", 4, 4), ("robust", 1, 8)],
)
def test_benchmarks_run(name, ratios, sizes):
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick"]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fedpca / this") >= ratios
    assert done.stdout.count("MB") >= sizes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("many_sites.py messages memory", ["the most for messages", "n_jobs=4"]),
        ("alternatives.py tall", ["FederatedPCA, 4 sites", "scikit-learn IncrementalPCA"]),
        ("scaling.py rows", ["at ", "seconds grow as rows^"]),
    ],
)
def test_benchmarks_of_many_sites_and_sizes_run(command, found):
    name, *cases = command.split()
    whole = [sys.executable, str(ROOT / "benchmarks" / name), *cases, "--quick"]
    done = subprocess.run(whole, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in found)
    assert "failed" not in done.stdout


def test_the_benchmark_of_the_guard_runs():
    command = [sys.executable, str(ROOT / "benchmarks" / "guard.py"), "--quick"]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("guard's share") == 2


def test_the_benchmark_of_privacy_runs():
    command = [sys.executable, str(ROOT / "benchmarks" / "privacy.py"), "--quick"]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the bar of 2.5" in done.stdout
    assert len(done.stdout.splitlines()) == 18


def test_the_benchmark_of_a_federation_runs():
    command = [sys.executable, str(ROOT / "benchmarks" / "flower.py"), "--quick"]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bit for bit") == 2
    assert "(bound 0.10)" in done.stdout


def test_the_benchmark_of_gpus_runs_on_the_processor():
    pytest.importorskip("torch")
    command = [sys.executable, "-W", "error", str(ROOT / "benchmarks" / "gpu.py")]
    command += ["--device", "cpu", "--quick", "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1.50") >= 4
    assert done.stdout.count("bound ") >= 5


@pytest.mark.slow
def test_scikit_learns_own_tests_pass_but_for_differences_that_are_meant():
    command = [sys.executable, str(ROOT / "benchmarks" / "peers.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("pass") == 2


def test_the_commands_of_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", text, re.MULTILINE):
        assert f"\n{target}:" in makefile
    shown = command_line.run("--help")
    for command in re.findall(r"^fedpca (\w+)", text, re.MULTILINE):
        assert command in shown.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_reference_is_what_the_docstrings_say():
    command = [sys.executable, str(ROOT / "docs" / "make_reference.py"), "--check"]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def lying_tables(*attacks):
    """What the example prints about some attacks or all: two tables, as on the page on privacy."""
    command = [sys.executable, "-W", "error", str(LYING), *attacks]
    # in a process of its own, so that no import of ours gives a warning either
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tables = done.stdout.strip().split("\n\n")
    assert len(tables) == 2
    return tables


def test_the_page_on_privacy_says_what_some_lies_recover():
    text = (ROOT / "docs" / "privacy.md").read_text()
    places = ("<!-- lying_coordinator.py -->", "<!-- lying_coordinator.py, robust -->")
    attacks = ("extreme values", "moved mean", "rare flag")
    for place, table in zip(places, lying_tables(*attacks), strict=True):
        page = text.partition(place)[2].partition("<!-- end -->")[0].splitlines()
        found = table.splitlines()
        assert len(found) == 2 + (len(attacks) if place == places[0] else 1)
        missing = [line for line in found if line not in page]
        assert not missing, "run: python examples/lying_coordinator.py --write"
    page = text.partition(places[0])[2].partition("<!-- end -->")[0]
    assert re.findall(r"^\| ([^|]+?) \|", page, re.MULTILINE) == ["attack", *ATTACKS]


@pytest.mark.long
def test_the_page_on_privacy_says_what_a_lying_coordinator_recovers():
    page = (ROOT / "docs" / "privacy.md").read_text()
    for table in lying_tables():
        assert table in page, "run: python examples/lying_coordinator.py --write"
