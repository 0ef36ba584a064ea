"""The shell and Python offer the same; what only one of them has is in a table, with the reason."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest
import typer

import fedpca
from fedpca import Federation, report
from fedpca.audit import leakage, lying
from fedpca.cli.app import COMMANDS, app
from fedpca.cli.fit_files import FitFiles
from fedpca.cli.methods import ESTIMATORS, Kind, Method, Noise
from fedpca.cli.sites import WhichSites
from fedpca.estimators.diagnosis import Diagnosis
from fedpca.report.page import report_page
from fedpca.rows.reading import Reading

PRINTING = {
    "output": "Python returns a value, which has its own save",
    "force": "Python's save overwrites",
    "quiet": "Python prints nothing",
    "json": "Python has the values",
    "csv": "Python has the values",
    "files": "the rows that Python passes",
    "file": "the rows that Python passes",
    "database": "Python's rows are an address, with query",
    "databases": "Python's rows are an address, with query",
}
OF_STREAMS = (
    "spare", "rank", "max_components", "forgetting", "center", "whiten", "share", "alpha", "beta",
    "cooldown", "batch_size", "exact",
)  # fmt: skip
PLOTTING = {"ax": "the shell has no axes to draw on"}
IN_PROCESS = "only for callers in the same process"
ROWS_OF_SITES = {
    "X": "FILES, --database, --federation, or --cluster",
    "sites": "in the shell, a site's rows are files of their own",
    "sample_weight": "--weight names a column",
}
AT_SITES = dict.fromkeys(
    (
        "federation", "cluster", "jobs", "sites", "wait", "credentials", "insecure", "purpose",
        "approval_wait", "secure", "quorum", "on_refusal", "timeout",
    ),
    "of the Federation that Python passes",
)  # fmt: skip
READING = dict.fromkeys(
    inspect.signature(Reading).parameters, "of the Site or the Federation that Python passes"
)
NAMED_OTHERWISE = {  # what the shell calls a parameter of Python
    "X": "rows",
    "ax": "ax",
    "data": "rows",
    "n_features": "features",
    "n_spare": "spare",
    "n_permutations": "permutations",
    "random_state": "seed",
    "n_shared": "shared",
    "n_local": "local",
    "n_jobs": "jobs",
    "solvers": "solver",
    "address": "federation",
    "client": "cluster",
    "parameters": "parameter",
    "min_count": "min_count",
    "components": "component",
    "store": "folder",
    "keys": "key",
    "fitted": "file",
}

# the functions, the command, what only Python has, and what only the shell has
PAIRS = {
    "FederatedPCA": (
        [fedpca.FederatedPCA], "fit",
        {
            "privacy": "--epsilon and the other options of differential privacy",
            "center": "--parameter center=none", "whiten": "--parameter whiten=True",
        },
        None,
    ),
    "PersonalizedPCA": (
        [fedpca.PersonalizedPCA], "fit",
        dict.fromkeys(("start", "n_init", "weights", "center"), "rare; --parameter NAME=VALUE"),
        None,
    ),
    "RobustPCA": (
        [fedpca.RobustPCA], "fit",
        dict.fromkeys(("center", "rows"), "rare; --parameter NAME=VALUE"),
        None,
    ),
    "StreamingPCA": (
        [fedpca.StreamingPCA, fedpca.StreamingPCA.from_summary], "merge",
        dict.fromkeys(OF_STREAMS, "a stream of batches lives in a process; the shell merges files")
        | {"summary": "FILES"},
        {"fan_in": "of fedpca.summary.summary.merge_in_tree", **PRINTING},
    ),
    "Privacy": ([fedpca.Privacy], "fit", {}, None),
    "Federation": (
        [Federation, Federation.local, Federation.flower, Federation.dask], "fit",
        {
            "engine": IN_PROCESS, "on_round": IN_PROCESS, "on_answer": IN_PROCESS,
            "on_waiting": IN_PROCESS, "on_online": IN_PROCESS, "options": "the other parameters",
            "reading": "the options of a reading", "rows": "FILES",
        },
        None,
    ),
    "Site": (
        [fedpca.Site], "join",
        {
            "memory_limit": "a site that joins has the memory of its machine to itself",
            "check": "the command always checks the rows", "tell": IN_PROCESS,
            "rows": "--data", "reading": "the options of a reading",
        },
        {
            "address": "of the server", "ca": "of the server", "insecure": "of the server",
            "coordinator": "a part of Python's keys", "data": "Python's rows", "more": "Python's rows",
            "allow_missing": "a part of Python's check", "timeout": "of the answers to a server",
            **PRINTING,
        },
    ),
    "Summary": (
        [fedpca.Summary.of], "summarize",
        {
            "center": "summaries of the shell are for merge, whose models are centered",
            "on_block": IN_PROCESS, "reading": "the options of a reading", "rows": "FILE",
            "weight": "refused: a summary counts every row once",
            "device": "refused: nothing is multiplied", "precision": "refused: nothing is multiplied",
        },
        PRINTING,
    ),
    "verify": (
        [fedpca.verify], "verify",
        {**ROWS_OF_SITES, "rows": "FILES"},
        {**AT_SITES, **READING, **PRINTING},
    ),
    "diagnose": (
        [fedpca.diagnose, Diagnosis.facts], "diagnose",
        {**ROWS_OF_SITES, "rows": "FILES", "site_map": "--no-site-map"},
        {
            **AT_SITES, **READING, **PRINTING, "no_site_map": "site_map=False",
            "plots": "the displays of fedpca.report", "report": "fedpca.report.page.report_page",
        },
    ),
    "plan": (
        [fedpca.plan], "plan",
        {
            "center": "--parameter center=none", "variances": "--like a model",
            "model": "the options of the method", "privacy": "--epsilon and its companions",
        },
        {
            **dict.fromkeys(
                ("kind", "n_components", "shared", "local", "gather", "max_components", "parameter"),
                "of the estimator that Python passes as model",
            ),
            **dict.fromkeys(
                ("epsilon", "delta", "row_bound", "around", "n_silent", "n_products"),
                "of the Privacy that Python passes",
            ),
            "like": "variances=", **PRINTING,
        },
    ),
    "audit": (
        [leakage.audit, lying.attack_site], "audit",
        {
            "sites": "FILES", "on_solver": IN_PROCESS, "on_attack": IN_PROCESS,
            "attacks": "the shell shows all of them",
        },
        {
            **READING, **PRINTING, "lying": "attack_site", "by_site": "the facts of the result",
            "table": "the exposures of the result", "plot": "LeakDisplay",
            **dict.fromkeys(
                ("scale", "binomial", "maf", "missing", "tol", "max_rounds", "parameter"),
                "the parameters that Python passes by name",
            ),
        },
    ),
    "report": ([report_page], "report", {"diagnosis": "diagnose --report", "name": "FILE"}, PRINTING),
    "plots": (
        [
            getattr(report, name).from_estimator
            for name in report.__all__
            if hasattr(getattr(report, name), "from_estimator")
            and name not in ("SiteMapDisplay", "StabilityDisplay")  # diagnose --plots draws them
        ],
        "plot",
        {
            **PLOTTING, "sites": "--summary", "limits": "those of the model",
            "diagnosis": "diagnose --plots", "epsilons": "the usual ones", "n_rows": "the usual number",
        },
        {
            **READING, **PRINTING, "kind": "the class of the plot", "summary": "sites=",
            "component": "components= of a biplot",
        },
    ),
}  # fmt: skip


def options_of(command):
    group = typer.main.get_command(app)
    found = group.get_command(typer.Context(group), command)
    return {parameter.name for parameter in found.params}


def parameters_of(functions):
    names = {name for each in functions for name in inspect.signature(each).parameters}
    return {NAMED_OTHERWISE.get(name, name) for name in names - {"self", "cls"}}


@pytest.mark.parametrize("name", PAIRS)
def test_what_only_python_or_only_the_shell_has_is_written_down(name):
    functions, command, only_python, only_shell = PAIRS[name]
    python, shell = parameters_of(functions), options_of(command)
    assert python - shell - only_python.keys() == set()
    assert only_python.keys() - python - ROWS_OF_SITES.keys() - {"rows"} == set()  # none is stale
    if only_shell is not None:
        assert shell - python - only_shell.keys() == set()
        assert only_shell.keys() - shell - READING.keys() - PRINTING.keys() == set()


ONLY_FIT = {
    **PRINTING,
    "kind": "the class of the estimator",
    "solver_option": "of the solver that Python passes as a value",
    "parameter": "any parameter by its name",
    "binomial": "scale='binomial'",
    "local_models": "save_site",
    "outliers": "fedpca.models.outliers.write_outliers",
    "plink": "fedpca.report.plink.write_model",
    "page": "Python's callers draw their own pages",
    "page_at": "Python's callers draw their own pages",
}


def test_fit_has_nothing_that_the_classes_that_it_stands_for_lack():
    names = ("FederatedPCA", "PersonalizedPCA", "RobustPCA", "Privacy", "Federation", "Site")
    python = set().union(*(parameters_of(PAIRS[name][0]) for name in names))
    assert options_of("fit") - python == ONLY_FIT.keys() - {"file", "database"}


def test_every_command_is_compared_or_has_no_twin_in_python():
    without = {
        "info": "facts() of what was loaded",
        "transform": "model.transform, and files beside it",
        "check": "fedpca.rows.check",
        "demo": "a demonstration",
        "serve": "a server is a process of its own",
        "requests": "a person's decision at a site's machine",
        "approve": "a person's decision at a site's machine",
        "deny": "a person's decision at a site's machine",
        "site-key": "a person's keys",
        "ledger": "a site's file",
        "policy": "Policy.load, and a file with comments",
        "budget": "a site's file",
    }
    assert {each[1] for each in PAIRS.values()} | without.keys() == COMMANDS.keys()


@pytest.mark.parametrize("kind", Kind)
def test_every_option_of_a_method_sets_a_parameter_of_its_estimators(kind):
    known = inspect.signature(ESTIMATORS[kind]).parameters
    metadata = [each.metadata for each in Method.__dataclass_fields__.values()]
    sets = [each["parameter"] for each in metadata if kind in each.get("kinds", ())]
    assert sets
    assert set(sets) <= known.keys()


SPELLED_AGAIN = {
    ("plan", "solver"): "several solvers",
    ("audit", "solver"): "several solvers",
    ("audit", "secure"): "about the fits that are attacked",
    ("merge", "n_components"): "by default, the number in the summaries",
    ("verify", "tol"): "a change, and not a residual",
    ("diagnose", "seed"): "of other random numbers",
    ("join", "timeout"): "of the site's own work",
    ("plot", "kind"): "a kind of plots",
    ("transform", "plink"): "other files",
    ("demo", "federation"): "a flag",
    ("budget", "delta"): "no fit follows",
}


def test_no_command_spells_an_option_that_a_group_declares():
    group = typer.main.get_command(app)
    found = {}
    for kind in (Reading, Method, Noise, WhichSites, FitFiles):
        for each in kind.__dataclass_fields__.values():
            if "help" not in each.metadata:
                continue
            for command in COMMANDS:
                for option in group.get_command(typer.Context(group), command).params:
                    if option.name == each.name and option.help != each.metadata["help"]:
                        found[command, option.name] = option.help
    assert found.keys() == SPELLED_AGAIN.keys()


def test_bodies_of_commands_fit_on_a_screen():
    for command in COMMANDS:
        name = command.replace("-", "_")
        found = getattr(import_module(f"fedpca.cli.{name}"), name)
        if not isinstance(found, typer.Typer):
            source = inspect.getsource(inspect.unwrap(found))
            assert source.rpartition('"""')[2].count("\n") <= 50, command
