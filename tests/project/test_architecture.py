"""The house is what the pages say: where modules lie, what a fit crosses, how code is described."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np

import fedpca
from fedpca import FederatedPCA
from fedpca.protocol.question import _REGISTRY
from fedpca.site.site import Site

SOURCE = Path(fedpca.__file__).parent
FLOWER_APP = Path(__file__).parents[2] / "examples" / "flower_app"
MODULES = sorted(SOURCE.rglob("*.py"))


def test_the_root_holds_what_everything_needs_and_no_more():
    names = {path.stem for path in SOURCE.glob("*.py")}
    assert names == {"__init__", "__main__", "_version", "arrays", "errors", "facts"}


def test_every_folder_says_what_it_is_for():
    for folder in {path.parent for path in MODULES}:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_every_question_lives_with_its_solver_and_knows_the_type_of_its_site():
    ours = [q for q in _REGISTRY.values() if q.package == "fedpca"]
    assert len(ours) > 20
    for question in ours:
        assert question.function.__module__.startswith("fedpca.solvers.")
        assert question.function.__annotations__["site"] == Site.__name__
    families = {"personalized": "begin_personalized", "robust": "begin_robust"}
    for family, name in families.items():
        assert _REGISTRY[name].function.__module__ == f"fedpca.solvers.{family}.at_site"


def test_a_site_knows_every_question_without_the_estimators():
    """`fedpca join` imports as little as it can, and must not miss a question."""
    code = (
        "import sys, fedpca.cli.join; from fedpca.protocol.question import _REGISTRY;"
        "assert 'sklearn' not in sys.modules;"
        "known = set(_REGISTRY); import fedpca.estimators, fedpca.audit.leakage;"
        "print(sorted(set(_REGISTRY) - known), len(known))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    missing, n_known = done.stdout.rsplit(maxsplit=1)
    assert missing == "[]"
    assert int(n_known) > 20


def test_the_first_line_of_a_function_is_imperative():
    not_verbs = {"The", "A", "An", "What", "How", "Of", "By", "Which", "Where", "Whether", "This"}
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
                first = text.split()[0]
                assert first not in not_verbs, f"{module}, {node.name}: {first} ..."


def test_the_command_line_imports_nothing_but_what_an_ordinary_install_brings():
    """What an extra brings is imported where it is used, and what a dependency brings may go."""
    own = {"fedpca", "numpy", "scipy", "sklearn", "pyarrow", "safetensors", "typer", "rich"}
    for path in (SOURCE / "cli").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module)
            for name in names:
                top = name.partition(".")[0]
                assert top in own or top in sys.stdlib_module_names, f"{path.name}: {name}"


def test_only_the_federation_writes_its_fields():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                text = ast.unparse(target)
                assert not text.startswith(("fed.", "federation.")), f"{path.name}: {text}"


def test_a_fit_in_process_crosses_few_files():
    """Counted are the files between `fit` and the rows, and all files with a function that runs."""
    rng = np.random.default_rng(0)
    sites = {"a": rng.normal(size=(50, 6)), "b": rng.normal(size=(30, 6))}
    to_the_rows: set[str] = set()
    crossed = set()

    def note(frame, event, _):
        if event != "call" or SOURCE not in Path(frame.f_code.co_filename).parents:
            return
        crossed.add(frame.f_code.co_filename)
        callers = set()
        while frame is not None:
            if SOURCE in Path(frame.f_code.co_filename).parents:
                callers.add(frame.f_code.co_filename)
            frame = frame.f_back
        if len(callers) > len(to_the_rows):
            to_the_rows.clear()
            to_the_rows.update(callers)

    FederatedPCA(2, solver="covariance").fit(sites)  # imports what is imported when called
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        FederatedPCA(2, solver="covariance").fit(sites)
    finally:
        sys.setprofile(before)
    assert len(to_the_rows) <= 15, sorted(to_the_rows)
    assert len(crossed) <= 35, sorted(crossed)


def test_the_flower_app_uses_flowers_public_interface_alone():
    public = {"flwr", "flwr.app", "flwr.serverapp", "flwr.clientapp"}
    imported = set()
    for path in [*(SOURCE / "engines" / "flower_app").glob("*.py"), *FLOWER_APP.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
    assert {name for name in imported if name.partition(".")[0] == "flwr"} == public


# names that stand for one thing in several modules, or for a command and what it calls
SAME_THING = {
    "F": "a type variable",
    "T": "a type variable",
    "log": "each process logs under a name of its own",
    "EPS": "the spacing of float64 numbers at 1",
    "NODE_POLL_S": "two engines for Flower, which share no code",
    "unwrap": "two engines for Flower, which share no code",
    "wrap": "two engines for Flower, which share no code",
    "connect": "a federation calls this function of each engine",
    "audit": "a command, and the function that it calls",
    "diagnose": "a command, and the function that it calls",
    "join": "a command, and the function that it calls",
    "plan": "a command, and the function that it calls",
    "serve": "a command, and the function that it calls",
    "summarize": "a command, and the function that it calls",
    "verify": "two commands, and the function that one of them calls",
}
# names that mean different things and are still to be told apart
# fmt: off
TO_BE_TOLD_APART = {
    "AT_REST", "BLOCK_ENTRIES", "Block", "Checked", "D_WIDE", "END", "End", "Entry", "FAMILIES",
    "FEW_ROUNDS", "FILES", "Frame", "KINDS", "Kind", "MAX_LOCAL_STEPS", "MAX_PRODUCTS",
    "MAX_ROUNDS", "MAX_ROWS", "MAX_SIDE", "MIN_ROWS", "N_BINS", "N_GUARDS", "N_LINKED",
    "PERSONALIZED", "PORT", "Product", "ROUNDING", "ROWS", "Round", "Rows", "Rule", "Run", "SECRET",
    "SHARE", "SOLVERS", "SUMS", "SitePart", "Sizes", "TELLS_APART", "TIMES_LANCZOS", "TOL", "WIDE",
    "column_sums", "components_of", "grown", "impossible_sums", "in_words", "many_flags", "option",
    "rows_with_gaps", "shares_of", "size",
}
# fmt: on


def test_no_public_name_stands_for_two_things():
    modules_of: dict[str, set[str]] = {}
    for path in MODULES:
        for name in _public_names(ast.parse(path.read_text())):
            modules_of.setdefault(name, set()).add(str(path.relative_to(SOURCE)))
    twice = {name for name, modules in modules_of.items() if len(modules) > 1}
    new = {name: sorted(modules_of[name]) for name in twice - set(SAME_THING) - TO_BE_TOLD_APART}
    assert new == {}, "name each by what it means"
    assert (set(SAME_THING) | TO_BE_TOLD_APART) - twice == set(), "remove these from the tables"


def _public_names(module: ast.Module) -> set[str]:
    """Return the classes, functions, and constants that a module defines."""
    found = set()
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            found.update(part.id for part in parts if isinstance(part, ast.Name))
    return {name for name in found if not name.startswith("_")}
