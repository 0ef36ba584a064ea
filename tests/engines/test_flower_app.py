"""An ordinary Flower app gives the model and the ledger of one process, over whichever Flower."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedpca import FederatedPCA, Federation, Site, load
from fedpca.cli.demo_federation import await_port, free_port
from fedpca.engines.flower_app.client import client_app, settings_of
from fedpca.engines.flower_app.engine import GridEngine
from fedpca.errors import InputError, LinkError, PolicyRefused, QuorumLost, SiteFailed, SiteTimeout
from fedpca.protocol.message import compose, decode
from fedpca.protocol.plan import DECLARE
from fedpca.site.policy import JOINING
from fedpca.testing import check_engine
from processes import HANG_S, save_rows, until

APP = Path(__file__).parents[2] / "examples" / "flower_app"
SITES = ("north", "south")
OPEN = 'allow = ["any"]\ngather = true\nend = true\n'


class Nodes(Grid):
    """A grid of nodes within this process, each of which has a new app for each message."""

    def __init__(self, configurations):
        self.nodes = dict(enumerate(configurations, start=100))
        self.silent, self.raised = set(), None
        self._replies, self._n_pushed = {}, 0

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        if self.raised is not None:
            raise self.raised
        pushed = []
        for message in messages:
            self._n_pushed += 1
            pushed.append(f"message-{self._n_pushed}")
            message.metadata.__dict__["_message_id"] = pushed[-1]  # as Flower's own grids do
            node = message.metadata.dst_node_id
            if node not in self.silent:
                context = Context(1, node, self.nodes[node], RecordDict(), {"components": 2})
                self._replies[pushed[-1]] = client_app()(message, context)
        return pushed

    def pull_messages(self, message_ids):
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def set_run(self, run): ...
    def run(self): ...
    def create_message(self, *_): ...
    def send_and_receive(self, *_, **__): ...


@pytest.fixture
def task(monkeypatch):
    """What Flower sets in the process of a ServerApp."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def grid(task, tmp_path):
    save_rows(tmp_path, SITES, seed=3)
    return Nodes([configuration(tmp_path, site) for site in SITES])


def configuration(folder, site, **more):
    own = {"rows": f"{folder / site}.npy", "name": site, "folder": f"{folder / site}-memory"}
    return {f"fedpca.{key}": value for key, value in {**own, **more}.items()}


def request(**more):
    header = {"run": "r.0", "round": 1, "question": "column_names", "verb": "gather", "n_sites": 2}
    return compose({**header, "memory": 0, **more}, {})


def ledger(folder, site):
    lines = (folder / f"{site}-memory" / "ledger.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def fit_within(folder, sites, solver):
    """The model of the same rows within this process, under the same policy."""
    near = [Site(folder / f"{site}.npy", name=site, policy=JOINING) for site in sites]
    return FederatedPCA(3, solver=solver, random_state=0).fit(Federation.local(near))


def assert_same(model, within):
    assert model.components_.tobytes() == within.components_.tobytes()
    assert model.explained_variance_.tobytes() == within.explained_variance_.tobytes()
    assert list(model.run_.ledger) == list(within.run_.ledger)
    assert model.run_.sites == within.run_.sites


def test_the_engine_keeps_what_engines_promise(grid, tmp_path):
    (tmp_path / "open.toml").write_text(OPEN)
    for node, site in zip(list(grid.nodes), SITES, strict=True):
        policy = str(tmp_path / "open.toml")
        grid.nodes[node] = configuration(tmp_path, site, policy=policy)
    rows = {site: tmp_path / f"{site}.npy" for site in SITES}
    check_engine(GridEngine(grid, sites=2), rows)


@pytest.mark.parametrize("solver", ["covariance", "lanczos"])
def test_a_site_that_forgets_all_but_its_files_follows_its_policy_to_the_same_model(
    grid, tmp_path, solver
):
    model = FederatedPCA(3, solver=solver, random_state=0)
    with Federation.flower_app(grid, sites=SITES) as fed:
        far = model.fit(fed)
    assert_same(far, fit_within(tmp_path, SITES, solver))
    for site in SITES:
        declared, *told = ledger(tmp_path, site)
        assert declared["question"] == DECLARE
        assert [line["question"] for line in told] == [e["question"] for e in far.run_.history]
        (budget,) = (tmp_path / f"{site}-memory").glob("*.budget")
        counts = np.array(list(decode(budget.read_bytes(), limit=None).header["counted"].values()))
        assert counts.sum(axis=0).tolist() == [1, sum(line["refused"] is None for line in told)]


def test_what_the_policy_forbids_and_what_needs_one_process_is_refused(grid):
    with (
        Federation.flower_app(grid, sites=2) as fed,
        pytest.raises(PolicyRefused, match=r"does not allow 'merge'"),
    ):
        FederatedPCA(2, solver="merge").fit(fed)
    with (
        Federation.flower_app(grid, sites=2, secure=True) as fed,
        pytest.raises(PolicyRefused, match=r"a new process for each question.*fedpca join"),
    ):
        FederatedPCA(2, solver="lanczos").fit(fed)


def test_a_node_that_cannot_answer_tells_nothing_but_the_kind_of_error(grid, tmp_path):
    engine = GridEngine(grid, sites=SITES)
    (tmp_path / "south.npy").unlink()
    answers = dict(engine.ask(SITES, request(), None))
    assert isinstance(answers["north"], bytes)
    assert isinstance(answers["south"], SiteFailed)
    assert "see the log of the SuperNode" in str(answers["south"])
    assert str(tmp_path) not in str(answers["south"])


def test_a_node_that_comes_back_under_a_new_number_is_found_again(grid):
    engine = GridEngine(grid, sites=SITES)
    grid.nodes[555] = grid.nodes.pop(101)
    assert all(isinstance(answer, bytes) for _, answer in engine.ask(SITES, request(), None))
    del grid.nodes[555]
    answers = dict(engine.ask(SITES, request(round=2), None))
    assert isinstance(answers["north"], bytes)
    assert "not online" in str(answers["south"])


def test_a_node_that_is_late_or_sends_too_much_is_an_error_in_place_of_an_answer(grid):
    engine = GridEngine(grid, sites=SITES)
    grid.silent = {101}
    answers = dict(engine.ask(SITES, replace(request(), max_answer_bytes=10), 0.05))
    assert "more than the limit of 10" in str(answers["north"])
    assert isinstance(answers["south"], SiteTimeout)


def test_whatever_a_grid_raises_is_an_error_of_the_link(grid):
    engine = GridEngine(grid, sites=2)
    grid.raised = OSError("no route")
    with pytest.raises(LinkError, match=r"OSError: no route"):
        list(engine.ask(SITES, request(), None))


def test_the_sites_that_are_wanted_must_come_online(grid, tmp_path):
    with pytest.raises(
        QuorumLost, match=r"2 of 3 sites are online after 0 s, but all are required"
    ):
        GridEngine(grid, sites=3, wait=0)
    engine = GridEngine(grid, sites=["south", "west"], quorum=1, wait=0)
    assert engine.names == ["south"]
    assert engine.absent == {"west": "not online after 0 s"}
    with pytest.raises(InputError, match=r"sites=1, but 2 are online: north, south; name"):
        GridEngine(grid, sites=1)
    with pytest.raises(InputError, match=r"quorum=3 must be between 1 and 2"):
        GridEngine(grid, sites=2, quorum=3)
    for wrong in ("north", 0, [], ["north", "north"]):
        with pytest.raises(InputError, match="sites="):
            GridEngine(grid, sites=wrong)
    grid.nodes[200] = configuration(tmp_path, "north")
    with pytest.raises(InputError, match=r"two SuperNodes have the site name 'north'"):
        GridEngine(grid, sites=3)


def test_a_node_reads_its_settings_and_refuses_what_it_does_not_know():
    def settings(node, run):
        return settings_of(Context(1, 1, node, RecordDict(), run))

    node = {"fedpca.rows": "a.csv", "fedpca.name": "a", "fedpca.drop": "x, y", "partition-id": 3}
    own = settings(node, {"simulated-rows": "b.csv", "simulated-policy": "open.toml"})
    assert (own.rows, own.name, own.policy) == ("a.csv", "a", "")
    assert own.reading.given == {"drop": ("x", "y")}
    cells = settings({**node, "fedpca.layer": "counts", "fedpca.log_normalize": "1e4"}, {})
    assert (cells.reading.layer, cells.reading.log_normalize) == ("counts", 1e4)
    for unknown in ("query", "of_model", "panel"):
        with pytest.raises(InputError, match=f"fedpca.{unknown} is unknown"):
            settings({**node, f"fedpca.{unknown}": "x"}, {})
    with pytest.raises(InputError, match=r"fedpca.polcy is unknown"):
        settings({**node, "fedpca.polcy": "p.toml"}, {})
    with pytest.raises(InputError, match=r"fedpca.rows, fedpca.name is missing.*--node-config"):
        settings({}, {"simulated-rows": "b.csv"})
    simulated = settings(
        {"partition-id": 4, "num-partitions": 20}, {"simulated-rows": "/data/{site}.npy"}
    )
    assert (simulated.rows, simulated.name) == ("/data/site-05.npy", "site-05")


class Flower:
    """Flower's own programs in a folder, which know nothing of fedpca but the app."""

    def __init__(self, folder, stack):
        self.folder, self._stack, self.port = folder, stack, free_port()
        bin_folder = str(Path(sys.executable).parent)
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")},
            "PATH": os.pathsep.join((bin_folder, os.environ["PATH"])),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "RAY_USAGE_STATS_ENABLED": "0",
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
        }
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n'
            f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )

    def start(self, name, command):
        log = self._stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            shlex.split(command), cwd=self.folder, env=self.environment, stdout=log, stderr=log
        )
        self._stack.callback(stop, process)

    def serve(self, *more):
        options = "--insecure --host 127.0.0.1 --disable-runtime-dependency-installation"
        self.start("superlink", f"flower-superlink {options} --port {self.port} {' '.join(more)}")
        await_port(self.port, HANG_S)

    def join(self, site, node_config):
        config = shlex.quote(" ".join(f'{key}="{value}"' for key, value in node_config.items()))
        link = f"--insecure --superlink 127.0.0.1:{self.port}"
        self.start(site, f"flower-supernode {link} --port {free_port()} --node-config {config}")

    def run(self, config, *more):
        """Run the app until it has written its model, and return the model."""
        output = self.folder / "model.fedpca"
        given = {**config, "output": str(output), "wait": HANG_S, "timeout": HANG_S}
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in given.items())
        command = ["flwr", "run", str(APP), "--run-config", words, *more]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        log = self.folder / "superlink.log"
        until(lambda: output.exists() or "Finished task" in log.read_text(), "the model", HANG_S)
        assert output.exists(), self.logs()
        return load(output)

    def logs(self):
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


def stop(process):
    process.terminate()
    process.wait(HANG_S)


@contextmanager
def flower(folder):
    with ExitStack() as stack:
        yield Flower(folder, stack)


@pytest.mark.process
def test_an_app_at_a_superlink_and_two_supernodes_gives_the_model_of_one_process(tmp_path):
    save_rows(tmp_path, SITES, seed=4)
    within = fit_within(tmp_path, SITES, "covariance")
    with flower(tmp_path) as deployed:
        deployed.serve()
        for site in SITES:
            deployed.join(site, configuration(tmp_path, site))
        model = deployed.run({"sites": "2", "components": "3", "solver": "covariance", "seed": 0})
    assert_same(model, within)
    for site in SITES:
        assert len(ledger(tmp_path, site)) == 1 + within.run_.rounds


@pytest.mark.process
@pytest.mark.long
def test_a_simulation_with_twenty_nodes_gives_the_model_of_one_process(tmp_path):
    pytest.importorskip("ray", reason="pip install 'flwr[simulation]'")
    sites = [f"site-{i:02d}" for i in range(1, 21)]
    save_rows(tmp_path, sites, seed=5)
    within = fit_within(tmp_path, sites, "lanczos")
    with flower(tmp_path) as deployed:
        deployed.serve("--simulation")
        config = {
            "sites": "20",
            "components": "3",
            "solver": "lanczos",
            "seed": 0,
            "simulated-rows": f"{tmp_path}/{{site}}.npy",
            "simulated-folder": f"{tmp_path}/{{site}}-memory",
        }
        nodes = "num-supernodes=20 client-resources-num-cpus=1"
        model = deployed.run(config, "--federation-config", nodes)
    assert_same(model, within)
