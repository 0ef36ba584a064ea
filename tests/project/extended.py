"""Look in a copy of fedpca for what `test_extending` has added, and print what is missing as JSON.

python extended.py docs/make_reference.py
"""

from __future__ import annotations

import inspect
import json
import sys
import traceback
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
from typer.testing import CliRunner

import fedpca
from fedpca import FederatedPCA, Federation, Policy, Site, Summary, diagnose
from fedpca.audit.leakage import audit
from fedpca.cli.app import app
from fedpca.errors import InputError, PolicyRefused
from fedpca.facts import as_plain
from fedpca.rows.reading import Reading
from fedpca.testing import check_engine

RNG = np.random.default_rng(0)
ROWS = {name: RNG.normal(size=(60, 5)) @ RNG.normal(size=(5, 5)) for name in ("north", "south")}
REFERENCE: dict[str, str] = {}


def refusal(kind, function, *args, **kwargs):
    """The text of the error that a call must raise."""
    try:
        function(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"{function} raised no {kind.__name__}")


def printed(*words):
    """What a command prints, which must not fail."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, (words, done.output)
    return done.output


def fit(name, policy, solver="covariance"):
    sites = [Site(ROWS["north"], name="north", policy=policy), Site(ROWS["south"], name="south")]
    return FederatedPCA(2, solver=solver, random_state=0).fit(sites)


def rule():
    assert "max_columns=0" in refusal(InputError, Policy, max_columns=0)
    assert "max_columns=True" in refusal(InputError, Policy, max_columns=True)
    path = Path("policy.toml")
    path.write_text("max_columns = 4\nend = true\n")
    policy = Policy.load(path)
    assert policy.max_columns == 4
    assert "max_columns = 4" in policy.to_text()
    assert "max_columns = 4" in policy.in_words()
    assert "max_columns" not in Policy().in_words()
    explained = printed("policy", "--explain", path)
    assert "max_columns = 4" in explained
    assert "more columns than this" in explained
    assert "max_columns" in REFERENCE["Policy.md"]
    assert "north" in (text := refusal(PolicyRefused, fit, "north", policy))
    assert "max_columns=4" in text
    fit("north", Policy(max_columns=5))


def option():
    commands = [
        "check",
        "fit",
        "transform",
        "summarize",
        "verify",
        "plot",
        "diagnose",
        "audit",
        "join",
    ]
    for name in commands:
        assert "--units" in printed(name, "--help"), name
        assert "--units" in REFERENCE["command-line.md"].split(f"## `fedpca {name}`")[1]
    assert "Units of the rows" in REFERENCE["Reading.md"]
    for function in (Site, Summary.of, Federation.dask):
        assert "units" in inspect.signature(function).parameters
    table = pa.table({"a": [1.0, 2.0], "b": [3.0, 5.0]})
    sites = [Site(table, name="a", units=units) for units in (None, "mm", "cm")]
    assert len({site.fingerprint for site in sites}) == 3
    assert sites[1].source.reading.units == "mm"
    Summary.of(table, 1, units="mm")
    assert Reading.typed({"units": "mm"}).units == "mm"
    try:
        from fedpca.engines.flower_app.client import settings_of
    except ImportError:  # without Flower
        return

    node = {"fedpca.rows": "x", "fedpca.name": "n", "fedpca.units": "mm"}
    context = SimpleNamespace(node_config=node, run_config={})
    assert settings_of(context).reading.units == "mm"


def file_format():
    Path("folder").mkdir()
    for name, rows in ROWS.items():
        np.savetxt(Path("folder", f"{name}.txt"), rows)
    both = FederatedPCA(2).fit({"both": "folder", "one": "folder/north.txt"})
    assert as_plain(both.facts())["n_rows"] == 180
    assert "60" in printed("check", "folder/north.txt", "folder/south.txt")
    Path("x.unknown").write_text("")
    assert ".txt" in refusal(InputError, lambda: Site("x.unknown", name="x").rows)
    assert "layer" in refusal(
        InputError, lambda: Site("folder/north.txt", name="x", layer="raw").rows
    )


def solver():
    from fedpca.protocol.question import find_question
    from fedpca.solvers import SOLVERS

    model = fit("north", Policy(), "oversampled")  # a site that follows the plan admits it
    assert model.run_.solver == "oversampled"
    model.save("model.fedpca")
    assert fedpca.load("model.fedpca").solver == "oversampled"
    assert "oversampled" in printed("info", "model.fedpca")
    assert fedpca.plan(60, 5, 2, sites=2)["oversampled"].rounds
    assert "oversampled" in printed("plan", "--rows", 60, "--features", 5, "-k", 2)
    assert "oversampled" in refusal(InputError, FederatedPCA(2, solver="other").fit, ROWS)
    assert SOLVERS["oversampled"].extra == 10
    question = find_question("oversampled_product")
    assert set(question.answers) == {"Y"}
    # what nobody has tried to attack is not said to be safe
    assert "oversampled_product" in refusal(Exception, audit, ROWS, 2, solvers="oversampled")


def engine():
    from fedpca.engines.folder import FolderEngine

    folder = FolderEngine("post", {name: Site(rows, name=name) for name, rows in ROWS.items()})
    check_engine(folder, ROWS)
    folder.close()


def site_file():
    from fedpca.site.store import FILES, NOTES, Kept

    assert NOTES in FILES
    path = NOTES.path(Path("store"), "north")
    Kept(NOTES, lambda: path).write({"text": "calm"}, {})
    assert Kept(NOTES, lambda: path).read(lambda message: message.header["text"]) == "calm"
    path.write_bytes(b"torn")
    text = refusal(InputError, Kept(NOTES, lambda: path).read, lambda message: message)
    assert "the site's notes" in text
    assert "restore the file" in text


def diagnosis():
    model = FederatedPCA(2).fit(ROWS)
    assert as_plain(diagnose(model, ROWS).facts())["weather"] == {"wind": 7}
    model.save("found.fedpca")
    for name, rows in ROWS.items():
        np.save(f"{name}.npy", rows)
    files = ("north.npy", "south.npy")
    assert "wind on that day" in printed("diagnose", "found.fedpca", *files)
    assert '"wind": 7' in printed("diagnose", "found.fedpca", *files, "--json")


PROOFS = {
    "a rule of a policy": rule,
    "an option for reading rows": option,
    "a format of files": file_format,
    "a solver with its questions": solver,
    "an engine": engine,
    "a file of a site": site_file,
    "a fact of a diagnosis": diagnosis,
}


def main(make_reference):
    assert "scratch" in Path(fedpca.__file__).parts, fedpca.__file__
    loader = SourceFileLoader("make_reference", make_reference)
    module = module_from_spec(spec_from_loader("make_reference", loader))
    sys.modules["make_reference"] = module
    loader.exec_module(module)
    REFERENCE.update(module.pages())
    proven = {}
    for what, proof in PROOFS.items():
        try:
            proof()
            proven[what] = ""
        except Exception:
            proven[what] = traceback.format_exc()
    print(json.dumps(proven))


main(sys.argv[1])
