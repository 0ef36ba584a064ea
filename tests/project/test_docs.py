"""Every example in README, docs and examples runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

import command_line
import forked
import pages
from fedpca.audit.lying import OWN, PUBLISHED

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
LYING = ROOT / "examples" / "lying_coordinator.py"
PLACES = [  # of its tables in the page on privacy
    "<!-- lying_coordinator.py -->",
    "<!-- lying_coordinator.py, published -->",
    "<!-- lying_coordinator.py, robust -->",
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_ELSEWHERE = ["across-organizations.md"]  # by test_tutorial_across.py, with processes of its own
REQUIRES = {"use-a-gpu": "torch"}  # which is too large to be among the tools of every developer
BRINGS_PANDAS = ["atlas-over-three-labs"]  # since anndata does
WITH_CODE = [
    page for page in PAGES if "```python" in page.read_text() and page.name not in RUN_ELSEWHERE
]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(page, tmp_path, monkeypatch):
    if page.stem in REQUIRES:
        pytest.importorskip(REQUIRES[page.stem])
    lacking = tmp_path / "lacking"  # what no installation that a page names brings
    lacking.mkdir()
    if page.stem not in BRINGS_PANDAS:
        pa.table({"a": [1]}).to_pandas()  # Arrow looks for pandas once, and remembers if it is gone
        (lacking / "pandas.py").write_text("raise ImportError('not installed')")
        monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.syspath_prepend(lacking)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    module = ModuleType("page")  # a real one, so that what it defines can be pickled
    monkeypatch.setitem(sys.modules, "page", module)
    mend = f"run: PYTHONPATH=tests python tests/pages.py --write {page.relative_to(ROOT)}"
    for block in pages.blocks(page.read_text()):
        if block.kind == "python" or page != ROOT / "README.md":
            printed = pages.run_block(block, page, module)
            assert block.shown is None or not pages.differs(block.shown, printed), (
                f"{page.name} shows\n{block.shown}\nbut its code prints\n{printed}\n{mend}"
            )
    for shown, saved in pages.drawn(page, tmp_path):
        assert not pages.picture_differs(shown, saved), f"{shown.name} is another picture; {mend}"


EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {LYING})  # which a test of its own runs
FEWER = {"private_fit": ["--trials", "40"]}  # repetitions, which only make figures steadier


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_examples_run(example):
    command = [sys.executable, "-W", "error", str(example), *FEWER.get(example.stem, [])]
    shown_nowhere = {**os.environ, "MPLBACKEND": "Agg"}
    shown_nowhere.pop("DISPLAY", None)  # matplotlib warns if it could have shown a picture
    done = forked.run(command, capture_output=True, text=True, env=shown_nowhere)
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


def test_the_benchmark_of_single_cells_runs():
    command = [sys.executable, str(ROOT / "benchmarks" / "single_cells.py"), "--quick"]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fedpca / ") == 4
    angles = [
        float(line.split("MB")[1].split()[0]) for line in done.stdout.splitlines() if "MB" in line
    ]
    assert len(angles) == 6
    assert max(angles) < 1e-6


def test_the_benchmark_of_the_guard_runs():
    command = [sys.executable, str(ROOT / "benchmarks" / "guard.py"), "--quick"]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("guard's share") == 2


def test_the_benchmark_of_plans_runs():
    command = [sys.executable, str(ROOT / "benchmarks" / "plans.py"), "rounds", "--quick"]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("within 30 %") == 5


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


def anchors(page):
    """The anchors of a page's headings, as the repository and the site make them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for title in re.findall(r"^#+ (.*)$", prose, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower().strip()
        yield re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        target, _, anchor = link.partition("#")
        if not target.startswith("http"):
            there = page.parent / target if target else page
            assert there.exists(), link
            assert not anchor or anchor in set(anchors(there)), link


LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*|"""
    r"""<link\b(?![^>]*canonical)[^>]*\bhref=["']?(?:https?:)?//[^>]*|"""
    r"""@import[^;]*//[^;]*|url\(["']?(?:https?:)?//[^)]*"""
)


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    for folder in ("docs", "examples"):  # the gallery writes beside the pages
        leave = shutil.ignore_patterns("_build", "gallery", "__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leave)
    (tmp_path / "src").symlink_to(ROOT / "src")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-D", "sphinx_gallery_conf.plot_gallery=0"]  # test_examples_run runs the scripts
    command += [str(tmp_path / "docs"), str(tmp_path / "site")]
    closed = {**os.environ, "MPLBACKEND": "Agg", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, capture_output=True, text=True, env=closed)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    for page in ("index.html", "reference/FederatedPCA.html", "gallery/four_clinics.html"):
        assert (site / page).stat().st_size > 5000
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        assert not LOADED.findall(path.read_text()), path.relative_to(site)


def test_the_reference_is_what_the_docstrings_say():
    command = [sys.executable, str(ROOT / "docs" / "make_reference.py"), "--check"]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def lying_tables(*attacks):
    """What the example prints about some attacks or all: three tables, as on the page on privacy."""
    command = [sys.executable, "-W", "error", str(LYING), *attacks]
    # in a process of its own, so that no import of ours gives a warning either
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tables = done.stdout.strip().split("\n\n")
    assert len(tables) == len(PLACES)
    return tables


def test_the_page_on_privacy_says_what_some_lies_recover():
    text = (ROOT / "docs" / "privacy.md").read_text()
    chosen = ["extreme values", "moved mean", "rare flag", "changing rosters"]
    in_tables = (chosen[:3], chosen[3:], chosen[:1])
    for place, attacks, table in zip(PLACES, in_tables, lying_tables(*chosen), strict=True):
        page = text.partition(place)[2].partition("<!-- end -->")[0].splitlines()
        found = table.splitlines()
        assert len(found) == 2 + len(attacks)
        missing = [line for line in found if line not in page]
        assert not missing, "run: python examples/lying_coordinator.py --write"
    for place, attacks in zip(PLACES, (OWN, PUBLISHED), strict=False):
        page = text.partition(place)[2].partition("<!-- end -->")[0]
        assert re.findall(r"^\| ([^|]+?) \|", page, re.MULTILINE) == ["attack", *attacks]


@pytest.mark.long
def test_the_page_on_privacy_says_what_a_lying_coordinator_recovers():
    page = (ROOT / "docs" / "privacy.md").read_text()
    for table in lying_tables():
        assert table in page, "run: python examples/lying_coordinator.py --write"
