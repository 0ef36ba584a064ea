"""What can be worked out from messages, and what cannot by the attacks that are known here."""

from __future__ import annotations

import csv
import sys
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.exceptions import ConvergenceWarning
from typer.testing import CliRunner

from conftest import gapped_rows
from fedpca import FederatedPCA, Federation
from fedpca.cli import app
from fedpca.engines.local import LocalEngine
from fedpca.errors import InputError
from fedpca.linalg import outside
from fedpca.moments import common_features, moments
from fedpca.privacy import attacks
from fedpca.privacy.leakage import LISTENERS, Target, leakage, rounds_to_look_at
from fedpca.privacy.transcript import Listener, record
from fedpca.rank import rank_rule
from fedpca.solvers import SOLVERS
from fedpca.solvers.faps import seek_consensus

GUESSES = {"shares", "published"}  # of everybody who has the model and the shares of variance


def iid_sites():
    """The paper's Figure 1 at a tenth of its size: 10 sites, 100 features, rows of pure noise."""
    rng = np.random.default_rng(0)
    return {f"site-{i}": rng.standard_normal((100, 100)) for i in range(10)}


def unlike_sites():
    """Sites of unlike sizes, each with its own spectrum along its own directions."""
    rng = np.random.default_rng(1)
    sites = {}
    for name, n in {"a": 60, "b": 90, "c": 120}.items():
        basis = np.linalg.qr(rng.standard_normal((16, 16)))[0]
        sites[name] = rng.standard_normal((n, 16)) * np.geomspace(3, 0.3, 16) @ basis
    return sites


def covariance_about_the_mean(sites, name):
    A = sites[name] - np.vstack(list(sites.values())).mean(axis=0)
    return A.T @ A


def relative_error(estimate, C):
    return np.linalg.norm(estimate - C) / np.linalg.norm(C)


def heard(sites, name, *, seed=0, n=10, how="seen", **options):
    """What is heard of one site in a fit of 10 components that may be cut short."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = record(FederatedPCA(n, random_state=seed, **options), sites)
    return run.heard(name, how, {name: len(rows) for name, rows in sites.items()})


def test_plain_products_tell_a_sites_covariance_after_ten_rounds():
    sites = iid_sites()
    C = covariance_about_the_mean(sites, "site-0")
    view = heard(sites, "site-0", solver="power", max_rounds=10, tol=0)
    assert relative_error(attacks.least_squares([view]), C) < 1e-4
    assert relative_error(attacks.least_squares([attacks.after(view, 9)]), C) > 1e-2
    assert relative_error(attacks.low_rank([attacks.after(view, 9)]), C) < relative_error(
        attacks.least_squares([attacks.after(view, 9)]), C
    )


def test_attack_that_takes_the_mask_of_faps_for_constant_does_not_get_far():
    sites = iid_sites()
    C = covariance_about_the_mean(sites, "site-0")
    view = heard(sites, "site-0", solver="faps", max_rounds=25, tol=0)
    for n_rounds in range(1, 26):
        assert relative_error(attacks.constant_mask([attacks.after(view, n_rounds)]), C) > 0.4


def test_messages_of_faps_near_the_cross_block():
    sites = {f"site-{i}": gapped_rows(np.random.default_rng(i), 200, 12, 3) for i in range(3)}
    C = covariance_about_the_mean(sites, "site-1")
    view = heard(sites, "site-1", solver="faps", n=3)
    off = []
    for Z, Y in attacks.masked_products(view):
        block = outside(Z, C @ Z)
        off.append(np.linalg.norm(outside(Z, Y) - block) / np.linalg.norm(block))
    assert off[0] > 0.1
    assert off[-1] < 1e-6
    # with Z'CZ of the last round all of C Z is known
    Z, _ = attacks.masked_products(view)[-1]
    found = attacks.cross_block([view])
    assert relative_error(found @ Z, C @ Z) < 1e-6
    assert np.trace(found) == pytest.approx(np.trace(C))


def masked_refits(sites, name, *, ahead):
    """The first messages of FAPS from 16 starts, as one coordinator hears them."""
    views = []
    for seed in range(16):
        listener = Listener(LocalEngine(sites))

        def program(fed, start):
            known = moments(fed, common_features(fed), center=True, scale=False)
            rank = rank_rule(10, known.n, known.d)
            return seek_consensus(fed, known, rank, start=start, tol=0.0, max_rounds=1, ahead=ahead)

        Federation(listener).run(program, about={}, seed=seed)
        rows = {name: len(rows) for name, rows in sites.items()}
        views.append(listener.transcript.heard(name, "seen", rows))
    return views


def test_refits_from_the_published_start_of_faps_tell_all_and_from_ours_less():
    sites = iid_sites()
    C = covariance_about_the_mean(sites, "site-0")
    published = attacks.refits(masked_refits(sites, "site-0", ahead=False))
    assert relative_error(published, C) < 1e-6
    ours = attacks.refits(masked_refits(sites, "site-0", ahead=True))
    assert relative_error(ours, C) > 0.3


def test_refits_tell_a_covariance_in_one_round_each():
    sites = unlike_sites()
    C = covariance_about_the_mean(sites, "b")
    for solver in ("power", "lanczos"):
        views = [heard(sites, "b", seed=s, n=4, solver=solver) for s in range(4)]
        first = [attacks.after(view, 1) for view in views]
        assert relative_error(attacks.refits(first), C) < 1e-8
        assert relative_error(attacks.low_rank(first), C) > 0.01
        assert attacks.refits(first[:1]) is None


@pytest.mark.parametrize("solver", ["lanczos", "power", "faps"])
def test_attacks_on_sums_do_no_better_than_a_share_of_the_whole(solver):
    found = leakage(unlike_sites(), 4, solvers=[solver], refits=3)
    for site, guess in found.guesses.items():
        assert 0.3 < guess < 1
        attacked = [e for e in found.of(solver, "summed", site) if e.attack not in GUESSES]
        assert {e.attack for e in attacked} >= {"refits"}
        last = max(e.round for e in attacked)
        for exposure in attacked:
            if exposure.round == last:
                assert exposure.error >= guess * (1 - 1e-6), exposure
                assert exposure.exposed == 0
        # the same attacks do far better where each answer is seen
        seen = found.best(solver, "seen", site)
        assert seen.attack not in GUESSES
        assert seen.error < (0.8 * guess if solver == "faps" else 1e-6)


def test_a_sum_over_one_site_hides_nothing():
    rows = {"only": unlike_sites()["a"]}
    found = leakage(rows, 3, solvers=["power"], refits=0)
    assert found.best("power", "summed", "only") == found.best("power", "seen", "only")._replace(
        how="summed"
    )
    assert found.guesses["only"] < 1e-12


def test_colluding_sites_take_their_parts_out_of_sums():
    sites = unlike_sites()
    options = {"solvers": ["power"], "refits": 0}
    two_left = leakage(sites, 4, colluding=["c"], **options)
    assert two_left.sites == ("a", "b")
    Ca, Cb = (covariance_about_the_mean(sites, name) for name in "ab")
    guess = relative_error(60 / 150 * (Ca + Cb), Ca)
    assert two_left.guesses["a"] == pytest.approx(guess)
    assert two_left.best("power", "summed", "a").error == pytest.approx(guess, rel=0.05)
    one_left = leakage(sites, 4, colluding=["b", "c"], **options)
    alone = one_left.best("power", "summed", "a")
    assert alone == one_left.best("power", "seen", "a")._replace(how="summed")
    with pytest.raises(InputError, match=r"no site \['d'\]; there are a, b, c"):
        leakage(sites, 4, colluding=["d"], **options)
    with pytest.raises(InputError, match="no site with rows that vary is left"):
        leakage(sites, 4, colluding=list(sites), **options)


@pytest.mark.parametrize("scale", [False, True])
def test_every_solver_is_attacked_as_every_listener(scale):
    sites = unlike_sites() | {"empty": np.empty((0, 16))}
    found = leakage(sites, 4, refits=1, scale=scale)
    assert set(found.solvers) == set(SOLVERS)
    assert set(found.sites) == {"a", "b", "c"}
    for solver in SOLVERS:
        for how in LISTENERS:
            for site in found.sites:
                names = {e.attack for e in found.of(solver, how, site)}
                assert "published" in names
                assert (names - GUESSES == set()) == (how == "published"), (solver, how)
                errors = [error for _, error in found.curve(solver, how, site)]
                assert np.isfinite(errors).all()
    tells_all = {"covariance", "lanczos", "power", "local-power"}
    for solver in SOLVERS:
        worst = min(found.best(solver, "seen", site).error for site in found.sites)
        assert (worst < 1e-6) == (solver in tells_all), solver
    # summaries are gathered, so that sums do not hide them
    for solver in ("merge", "average"):
        for site in found.sites:
            seen, summed = (found.best(solver, how, site) for how in ("seen", "summed"))
            assert summed.error == seen.error < 0.2
            assert seen.attack == "reading"


def test_what_is_heard_behind_sums_is_a_share_of_the_total():
    sites = unlike_sites()
    run = record(FederatedPCA(3, solver="power", random_state=0), sites)
    rows = {"a": 2, "b": 1, "c": 1}  # by which totals are shared out
    parts = [run.heard(name, "seen", rows) for name in sites]
    summed = run.heard("a", "summed", rows)
    for number, said in enumerate(summed[:-1]):
        answers = [part[number].answer for part in parts]
        for field, value in said.answer.items():
            total = sum(answer[field] for answer in answers)
            own = answers[0][field]
            is_gathered = said.question in ("introduce", "explained_energy")
            np.testing.assert_allclose(value, own if is_gathered else total / 2)
    assert run.heard("a", "published", rows) == summed[-1:]
    without_c = run.heard("a", "summed", rows, among=["a", "b"])
    totals = [part[1].answer["total"] for part in parts]
    np.testing.assert_allclose(without_c[1].answer["total"], 2 / 3 * (totals[0] + totals[1]))


def test_listener_hears_bytes_and_failures_as_they_are():
    from fedpca.errors import SiteTimeout
    from fedpca.message import encode

    class Flaky:
        """Carries bytes, and loses the first answer of one site."""

        def __init__(self, sites):
            self._engine = LocalEngine(sites)
            self.names, self._failed = self._engine.names, False

        def fingerprints(self):
            return self._engine.fingerprints()

        def ask(self, names, request, timeout):
            for name, reply in self._engine.ask(names, request, timeout):
                if not self._failed:
                    self._failed = True
                    yield name, SiteTimeout("too late")
                else:
                    yield name, encode(reply)

    sites = unlike_sites()
    listener = Listener(Flaky(sites))
    FederatedPCA(3, solver="covariance").fit(Federation(listener))
    direct = record(FederatedPCA(3, solver="covariance"), sites)
    rows = dict.fromkeys(sites, 1)
    assert listener.fingerprints() == LocalEngine(sites).fingerprints()
    for name in sites:
        pairs = zip(
            listener.transcript.heard(name, "seen", rows)[:-1],
            direct.heard(name, "seen", rows)[:-1],
            strict=True,
        )
        for over_bytes, within in pairs:
            for field, value in within.answer.items():
                np.testing.assert_array_equal(over_bytes.answer[field], value)


def test_exposed_share_counts_eigenpairs_that_are_known():
    C = np.diag([6.0, 3.0, 1.0])
    target = Target.of(C)
    assert target.exposed(C) == pytest.approx(1.0)
    assert target.exposed(np.diag([6.0, 3.0, 0.0])) == pytest.approx(0.9)
    assert target.exposed(np.diag([6.5, 0.0, 1.05])) == pytest.approx(0.7)
    assert target.exposed(np.zeros((3, 3))) == 0.0
    assert target.error(np.zeros((3, 3))) == pytest.approx(1.0)


def test_rounds_that_are_looked_at_end_with_the_last():
    assert rounds_to_look_at(1) == [1]
    assert rounds_to_look_at(4) == [1, 2, 3, 4]
    assert rounds_to_look_at(20) == [1, 2, 3, 4, 5, 7, 10, 15, 20]


def test_bad_input_is_refused_before_anything_is_fitted():
    sites = unlike_sites()
    with pytest.raises(InputError, match=r"no solver \['magic'\]; there are covariance"):
        leakage(sites, 2, solvers=["magic"])
    with pytest.raises(InputError, match="refits=-1"):
        leakage(sites, 2, refits=-1)
    with pytest.raises(InputError, match="1001 features exceed the 1000"):
        leakage([np.zeros((3, 1001))], 2)


@pytest.fixture
def files(tmp_path):
    paths = []
    for name, rows in unlike_sites().items():
        table = pa.table({f"x{j}": rows[:, j] for j in range(rows.shape[1])})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        paths.append(str(tmp_path / f"{name}.parquet"))
    return paths


def audit(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def test_audit_prints_writes_and_draws(files, tmp_path):
    table, plot = tmp_path / "audit.csv", tmp_path / "audit.png"
    chosen = ("--solver", "faps", "--solver", "lanczos", "--refits", 2)
    done = audit(*files, "-k", 4, *chosen, "--table", table, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert "at end" in done.output
    assert "lanczos" in done.output
    assert "power" not in done.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    with table.open() as file:
        lines = list(csv.DictReader(file))
    found = leakage(dict(zip("abc", files, strict=True)), 4, solvers=["faps", "lanczos"], refits=2)
    assert len(lines) == len(found.exposures)
    assert float(lines[7]["error"]) == found.exposures[7].error
    again = audit(*files, "-k", 4, *chosen, "--table", table)
    assert again.exit_code == 2
    assert "exists" in again.output


def test_audit_of_all_solvers_by_site(files):
    done = audit(*files, "-k", 2, "--solver", "all", "--refits", 0, "--by-site", "--scale")
    assert done.exit_code == 0, done.output
    for solver in SOLVERS:
        assert solver in done.output
    assert done.output.count("summed") >= 3 * len(SOLVERS)


def test_audit_refuses_what_it_cannot_do(files, tmp_path, monkeypatch):
    assert "must end in .csv" in audit(*files, "--table", tmp_path / "a.txt").output
    assert "must end in .png" in audit(*files, "--plot", tmp_path / "a.pdf").output
    wrong = audit(*files, "--solver", "magic")
    assert wrong.exit_code == 2
    assert "no solver ['magic']" in wrong.output
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    missing = audit(*files, "--plot", tmp_path / "a.png")
    assert missing.exit_code == 2
    assert "fedpca[plot]" in missing.output
