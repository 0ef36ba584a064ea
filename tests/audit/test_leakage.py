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

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.audit import attacks
from fedpca.audit.exposures import Target
from fedpca.audit.leakage import audit, rounds_to_look_at
from fedpca.audit.transcript import LISTENERS, Published, RecordingEngine, record
from fedpca.cli.app import app
from fedpca.engines.local import LocalEngine
from fedpca.errors import InputError, PolicyRefused
from fedpca.linalg.dense import outside
from fedpca.solvers import SOLVERS, Average, Faps, Merge, Problem
from fedpca.solvers.common_features import common_features
from fedpca.testing import ScriptedEngine
from support import gapped_rows

BESIDE_THE_SOLVER = {"shares", "published"}  # attacks that need none of its messages
GATHERED = {"shares", "rescaled"}  # that need what is told of each site's variance


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


def heard(sites, name, *, seed=0, n=10, listener="seen", **options):
    """What is heard of one site in a fit of 10 components that may be cut short."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = record(FederatedPCA(n, random_state=seed, **options), sites)
    return run.heard(name, listener, {name: len(rows) for name, rows in sites.items()})


def test_plain_products_tell_a_sites_covariance_after_ten_rounds():
    sites = iid_sites()
    C = covariance_about_the_mean(sites, "site-0")
    view = heard(sites, "site-0", solver="subspace-iteration", max_rounds=10, tol=0)
    assert relative_error(attacks.least_squares([view]), C) < 1e-4
    assert relative_error(attacks.least_squares([attacks.up_to_round(view, 9)]), C) > 1e-2
    assert relative_error(attacks.low_rank([attacks.up_to_round(view, 9)]), C) < relative_error(
        attacks.least_squares([attacks.up_to_round(view, 9)]), C
    )


def test_attack_that_takes_the_mask_of_faps_for_constant_does_not_get_far():
    sites = iid_sites()
    C = covariance_about_the_mean(sites, "site-0")
    view = heard(sites, "site-0", solver="faps", max_rounds=25, tol=0)
    for n_rounds in range(1, 26):
        assert relative_error(attacks.constant_mask([attacks.up_to_round(view, n_rounds)]), C) > 0.4


@pytest.mark.slow
def test_messages_of_faps_near_the_cross_block():
    sites = {f"site-{i}": gapped_rows(np.random.default_rng(i), 200, 12, 3) for i in range(3)}
    C = covariance_about_the_mean(sites, "site-1")
    view = heard(sites, "site-1", solver="faps", n=3)
    off = []
    for Z, Y in attacks.pairs_of(view, attacks.MASKED):
        block = outside(Z, C @ Z)
        off.append(np.linalg.norm(outside(Z, Y) - block) / np.linalg.norm(block))
    assert off[0] > 0.1
    assert off[-1] < 1e-6
    # with Z'CZ of the last round all of C Z is known
    Z, _ = attacks.pairs_of(view, attacks.MASKED)[-1]
    found = attacks.cross_block([view])
    assert relative_error(found @ Z, C @ Z) < 1e-6
    assert np.trace(found) == pytest.approx(np.trace(C))


def masked_refits(sites, name, *, start_apart):
    """The first messages of FAPS from 16 starts, as one coordinator hears them."""
    views = []
    for seed in range(16):
        listener = RecordingEngine(LocalEngine(sites))

        def program(fed, start):
            problem = Problem(common_features(fed), 10, tol=0.0, max_rounds=1, start=start)
            return Faps(start_apart=start_apart).solve(fed, problem)

        Federation(listener).run(program, identity={}, seed=seed)
        rows = {name: len(rows) for name, rows in sites.items()}
        nothing = np.zeros((100, 10))
        listener.transcript.model = Published(nothing, nothing[0], 0.0, nothing[:, 0])
        views.append(listener.transcript.heard(name, "seen", rows))
    return views


@pytest.mark.slow
def test_refits_from_the_published_start_of_faps_tell_all_and_from_ours_less():
    sites = iid_sites()
    C = covariance_about_the_mean(sites, "site-0")
    published = attacks.refits(masked_refits(sites, "site-0", start_apart=False))
    assert relative_error(published, C) < 1e-6
    ours = attacks.refits(masked_refits(sites, "site-0", start_apart=True))
    assert relative_error(ours, C) > 0.3


def test_refits_tell_a_covariance_in_one_round_each():
    sites = unlike_sites()
    C = covariance_about_the_mean(sites, "b")
    for solver in ("subspace-iteration", "lanczos"):
        views = [heard(sites, "b", seed=s, n=4, solver=solver) for s in range(4)]
        first = [attacks.up_to_round(view, 1) for view in views]
        assert relative_error(attacks.refits(first), C) < 1e-8
        assert relative_error(attacks.low_rank(first), C) > 0.01
        assert attacks.refits(first[:1]) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "solver", ["covariance", "lanczos", "subspace-iteration", "local-power", "faps"]
)
def test_no_attack_on_sums_does_better_than_a_guess_without_messages(solver):
    keeps_to_itself = Policy(gather=False)
    sites = {
        name: Site(rows, name=name, policy=keeps_to_itself) for name, rows in unlike_sites().items()
    }
    found = audit(sites, 4, solvers=solver, refits=3)
    for site, guess in found.guesses.items():
        assert 0.3 < guess < 1
        exposures = found.of(solver, "summed", site)
        last = max(e.round for e in exposures)
        assert {e.attack for e in exposures} - BESIDE_THE_SOLVER
        for exposure in exposures:
            assert exposure.attack not in GATHERED
            if exposure.round == last:
                assert exposure.error >= guess * (1 - 1e-6), exposure
                assert exposure.exposed == 0
        # the same attacks do far better where each answer is seen
        seen = found.best(solver, "seen", site)
        assert seen.attack not in BESIDE_THE_SOLVER
        assert seen.error < (0.8 * guess if solver == "faps" else 1e-6)


def test_shares_of_variance_that_are_gathered_improve_the_guess():
    rng = np.random.default_rng(2)
    shape = np.geomspace(3, 0.3, 10)
    sites = {
        name: scale * shape * rng.standard_normal((400, 10)) for name, scale in (("a", 1), ("b", 4))
    }
    found = audit(sites, 3, solvers="lanczos", refits=0)
    told = {e.attack: e for e in found.of("lanczos", "summed", "a") if e.attack in GATHERED}
    assert set(told) == GATHERED
    for exposure in told.values():
        assert exposure.error < found.guesses["a"] / 2
    assert told["rescaled"].error < 0.15
    assert told["rescaled"].exposed > 0.5
    assert not GATHERED & {e.attack for e in found.of("lanczos", "published", "a")}


@pytest.mark.slow
def test_simulation_undoes_the_mask_of_faps():
    rng = np.random.default_rng(0)
    sites = {
        f"s{i}": rng.standard_normal((40, 6))
        * [3, 2, 1, 0.5, 0.4, 0.3]
        @ (np.eye(6) + 0.1 * rng.standard_normal((6, 6)))
        for i in range(3)
    }
    found = audit(sites, 2, solvers=[Faps(local_steps=7)], refits=0, simulate=True)
    plain = audit(sites, 2, solvers=["subspace-iteration"], refits=0, simulate=True)
    for site in sites:
        end = found.best("faps", "seen", site)
        assert end.attack == "simulation"
        assert end.error < 1e-8
        others = [e for e in found.of("faps", "seen", site) if e.attack != "simulation"]
        assert min(e.error for e in others if e.round == end.round) > 1e-3
        assert "simulation" not in {e.attack for e in found.of("faps", "summed", site)}
        assert "simulation" not in {e.attack for e in plain.of("subspace-iteration", "seen", site)}
    with pytest.raises(InputError, match="41 features exceed the limit of 40"):
        audit([np.zeros((3, 41))], 2, simulate=True)


def test_simulation_needs_masked_products():
    from fedpca.audit.simulation import simulated_covariance

    assert (
        simulated_covariance([heard(unlike_sites(), "a", solver="subspace-iteration", n=2)]) is None
    )


@pytest.mark.slow
def test_a_rank_that_is_searched_for_with_wider_blocks_is_attacked_too():
    X = np.random.default_rng(0).standard_normal((400, 30)) * ([5] * 14 + [1] * 16)
    found = audit(np.array_split(X, 3), "mp", solvers="faps", refits=1)
    end = found.best("faps", "seen", "site-1")
    assert end.attack == "cross block"
    assert end.exposed > 0.5


@pytest.mark.slow
def test_all_solvers_that_policies_allow_are_audited_by_default():
    sites = {
        name: Site(rows, name=name, policy=Policy(gather=False))
        for name, rows in unlike_sites().items()
    }
    found = audit(sites, 2, refits=0)
    assert set(found.solvers) == set(SOLVERS) - {"merge", "average", "tsqr"}
    with pytest.raises(PolicyRefused, match="does not allow 'merge'"):
        audit(sites, 2, solvers="merge", refits=0)


def test_solvers_are_announced_before_they_are_attacked():
    announced = []
    audit(
        unlike_sites(),
        2,
        solvers=["subspace-iteration", "merge"],
        refits=0,
        on_solver=announced.append,
    )
    assert announced == ["subspace-iteration", "merge"]


def test_sites_without_variance_are_not_attacked():
    sites = unlike_sites()
    sites |= {"mean": np.tile(np.vstack(list(sites.values())).mean(axis=0), (3, 1))}
    assert "mean" not in audit(sites, 2, solvers="covariance", refits=0).sites


def test_refits_start_elsewhere():
    sites = {name: rows[:, :8] for name, rows in unlike_sites().items()}
    found = audit(sites, 2, solvers="lanczos", refits=3, max_rounds=1)
    # four starts of two columns span eight features; four times the same one do not
    refits = {e.site: e.error for e in found.of("lanczos", "seen", "a") if e.attack == "refits"}
    assert refits["a"] < 1e-8


def test_a_summary_is_read_about_the_common_mean_with_all_its_squares():
    rng = np.random.default_rng(3)
    sites = {"near": rng.standard_normal((50, 8)), "far": rng.standard_normal((30, 8)) + 5}
    for own_means in (True, False):
        solver = Merge(own_means=own_means, site_components=8)
        found = audit(sites, 2, solvers=solver, refits=0)
        for site in sites:
            assert found.best("merge", "seen", site).error < 1e-8
    cut = audit(sites, 2, solvers=Average(site_components=2), refits=0)
    view = record(FederatedPCA(2, solver=Average(site_components=2)), sites)
    rows = {name: len(part) for name, part in sites.items()}
    estimate = attacks.as_sent([view.heard("near", "seen", rows)])
    C = covariance_about_the_mean(sites, "near")
    np.testing.assert_allclose(estimate.diagonal(), C.diagonal())
    assert cut.best("average", "seen", "near").error > 1e-3


def test_published_model_gives_a_share_of_components_and_noise():
    sites = unlike_sites()
    run = record(FederatedPCA(4, solver="covariance"), sites)
    rows = {name: len(part) for name, part in sites.items()}
    whole = sum(covariance_about_the_mean(sites, name) for name in sites)
    guess = attacks.published([run.heard("b", "published", rows)])
    assert np.trace(guess) == pytest.approx(90 / 270 * np.trace(whole))
    values = np.linalg.eigvalsh(whole)[::-1] * 90 / 270
    np.testing.assert_allclose(np.linalg.eigvalsh(guess)[::-1][:4], values[:4])


def test_a_sum_over_one_site_hides_nothing():
    rows = {"only": unlike_sites()["a"]}
    found = audit(rows, 3, solvers=["subspace-iteration"], refits=0)
    assert found.best("subspace-iteration", "summed", "only") == found.best(
        "subspace-iteration", "seen", "only"
    )._replace(listener="summed")
    assert found.guesses["only"] < 1e-12


def test_colluding_sites_take_their_parts_out_of_sums():
    sites = unlike_sites()
    options = {"solvers": ["subspace-iteration"], "refits": 0}
    two_left = audit(sites, 4, colluding=["c"], **options)
    assert two_left.sites == ("a", "b")
    Ca, Cb = (covariance_about_the_mean(sites, name) for name in "ab")
    guess = relative_error(60 / 150 * (Ca + Cb), Ca)
    assert two_left.guesses["a"] == pytest.approx(guess)
    assert two_left.best("subspace-iteration", "summed", "a").error == pytest.approx(
        guess, rel=0.05
    )
    one_left = audit(sites, 4, colluding=["b", "c"], **options)
    alone = one_left.best("subspace-iteration", "summed", "a")
    assert alone == one_left.best("subspace-iteration", "seen", "a")._replace(listener="summed")
    with pytest.raises(InputError, match=r"colluding=\['d'\] are not sites; the sites are a, b, c"):
        audit(sites, 4, colluding=["d"], **options)
    with pytest.raises(InputError, match="leaves no site to attack whose rows vary"):
        audit(sites, 4, colluding=list(sites), **options)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [False, True])
def test_every_solver_is_attacked_as_every_listener(scale):
    sites = unlike_sites() | {"empty": np.empty((0, 16))}
    found = audit(sites, 4, refits=1, scale=scale)
    assert set(found.solvers) == set(SOLVERS)
    assert set(found.sites) == {"a", "b", "c"}
    for solver in SOLVERS:
        for listener in LISTENERS:
            for site in found.sites:
                names = {e.attack for e in found.of(solver, listener, site)}
                assert "published" in names
                assert (names - BESIDE_THE_SOLVER == set()) == (listener == "published"), (
                    solver,
                    listener,
                )
                errors = [error for _, error in found.curve(solver, listener, site)]
                assert np.isfinite(errors).all()
    tells_all = {"covariance", "lanczos", "subspace-iteration", "local-power", "tsqr"}
    for solver in SOLVERS:
        worst = min(found.best(solver, "seen", site).error for site in found.sites)
        assert (worst < 1e-6) == (solver in tells_all), solver
    # summaries are gathered, so that sums do not hide them
    for solver in ("merge", "average"):
        for site in found.sites:
            seen, summed = (found.best(solver, how, site) for how in ("seen", "summed"))
            assert summed.error == seen.error < 0.2
            assert seen.attack in {"as sent", "rescaled"}


def test_what_is_heard_behind_sums_is_a_share_of_the_total():
    sites = unlike_sites()
    run = record(FederatedPCA(3, solver="subspace-iteration", random_state=0), sites)
    rows = {"a": 2, "b": 1, "c": 1}  # by which count_and_sum are shared out
    parts = [run.heard(name, "seen", rows).messages for name in sites]
    summed = run.heard("a", "summed", rows)
    for number, said in enumerate(summed.messages):
        answers = [part[number].answer for part in parts]
        for field, value in said.answer.items():
            total = sum(answer[field] for answer in answers)
            own = answers[0][field]
            is_gathered = said.question in ("column_names", "explained_energy")
            np.testing.assert_allclose(value, own if is_gathered else total / 2)
    nothing = run.heard("a", "published", rows)
    assert not nothing.messages
    assert nothing.model is summed.model
    assert nothing.share == summed.share == 0.5
    without_c = run.heard("a", "summed", rows, among=["a", "b"])
    count_and_sum = [part[1].answer["total"] for part in parts]
    expected = 2 / 3 * (count_and_sum[0] + count_and_sum[1])
    np.testing.assert_allclose(without_c.messages[1].answer["total"], expected)
    with pytest.raises(InputError, match="listener='sum' must be one of seen, summed, published"):
        run.heard("a", "sum", rows)


def test_listener_hears_bytes_and_failures_as_they_are():
    from fedpca.errors import SiteTimeout

    failed = []

    def lose_the_first(reply):
        if failed:
            return reply.answer
        failed.append(reply.site)
        return SiteTimeout("too late")

    sites = unlike_sites()
    listener = RecordingEngine(ScriptedEngine(sites, lose_the_first))
    FederatedPCA(3, solver="covariance").fit(Federation(listener))
    direct = record(FederatedPCA(3, solver="covariance"), sites)
    with pytest.raises(InputError, match="no model yet"):
        listener.transcript.heard("a", "seen", {"a": 1})
    listener.transcript.model = direct.model
    rows = dict.fromkeys(sites, 1)
    assert listener.fingerprints() == LocalEngine(sites).fingerprints()
    for name in sites:
        pairs = zip(
            listener.transcript.heard(name, "seen", rows).messages,
            direct.heard(name, "seen", rows).messages,
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


def test_local_power_tells_a_sites_own_directions_in_its_first_round():
    sites = {f"site-{i}": gapped_rows(np.random.default_rng(i), 200, 12, 3) for i in range(3)}
    found = audit(sites, 3, solvers="local-power", refits=0)
    first = found.best("local-power", "seen", "site-0", rounds=1)
    assert first.attack == "leading part"
    assert first.error < 0.05
    assert first.exposed > 0.8


def test_options_of_a_solver_are_audited():
    solvers = [Faps(stop="objective"), "subspace-iteration"]
    found = audit(unlike_sites(), 4, solvers=solvers, refits=0)
    other = audit(unlike_sites(), 4, solvers=["faps", "subspace-iteration"], refits=0)
    ends = [
        [f.best(s, "seen", "a").round for f in (found, other)]
        for s in ("faps", "subspace-iteration")
    ]
    assert ends[0][0] != ends[0][1]
    assert ends[1][0] == ends[1][1]


def test_a_question_that_no_attack_knows_is_not_taken_for_private(monkeypatch):
    from fedpca.audit import leakage

    monkeypatch.setattr(leakage, "TELLING_QUESTIONS", ("covariance_triangle",))
    with pytest.raises(InputError, match="no attack covers the question 'covariance_product'"):
        audit(unlike_sites(), 2, solvers="subspace-iteration")


def test_bad_input_is_refused_before_anything_is_fitted(monkeypatch):
    monkeypatch.setattr(FederatedPCA, "fit", None)
    sites = unlike_sites()
    with pytest.raises(InputError, match="unknown solver 'magic'; use one of auto, covariance"):
        audit(sites, 2, solvers=["magic"])
    with pytest.raises(
        InputError, match=r"solvers=\[\] must name solvers from this list: covariance"
    ):
        audit(sites, 2, solvers=[])
    for refits in (-1, 1.5, None):
        with pytest.raises(InputError, match=f"refits={refits} must be a nonnegative integer"):
            audit(sites, 2, refits=refits)
    with pytest.raises(InputError, match="random_state=None must be an integer"):
        audit(sites, 2, random_state=None)
    with pytest.raises(InputError, match="dict or list with each site's rows, not ndarray"):
        audit(np.eye(3), 2)
    with pytest.raises(InputError, match="1001 features exceed the limit of 1000"):
        audit([np.zeros((3, 1001))], 2)


def test_what_was_not_looked_at_is_named():
    found = audit(unlike_sites(), 2, solvers="covariance", refits=0)
    with pytest.raises(
        InputError, match="'subspace-iteration' was not audited; use one of covariance"
    ):
        found.best("subspace-iteration", "seen", "a")
    with pytest.raises(InputError, match="'z' was not audited; use one of a, b, c"):
        found.curve("covariance", "seen", "z")
    with pytest.raises(InputError, match="'sum' was not audited; use one of seen, summed"):
        found.of("covariance", "sum", "a")


@pytest.fixture
def files(tmp_path):
    paths = []
    for name, rows in unlike_sites().items():
        table = pa.table({f"x{j}": rows[:, j] for j in range(rows.shape[1])})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        paths.append(str(tmp_path / f"{name}.parquet"))
    return paths


def run_audit(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


@pytest.mark.slow
def test_audit_prints_writes_and_draws(files, tmp_path):
    table, plot = tmp_path / "audit.csv", tmp_path / "audit.png"
    chosen = ("--solver", "faps", "--solver", "lanczos", "--refits", 2)
    done = run_audit(*files, "-k", 4, *chosen, "--table", table, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert "exposed" in done.output
    assert "lanczos" in done.output
    assert "subspace-iteration" not in done.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    with table.open() as file:
        lines = list(csv.DictReader(file))
    found = audit(dict(zip("abc", files, strict=True)), 4, solvers=["faps", "lanczos"], refits=2)
    assert len(lines) == len(found.exposures)
    assert float(lines[7]["error"]) == found.exposures[7].error
    again = run_audit(*files, "-k", 4, *chosen, "--table", table)
    assert again.exit_code == 2
    assert "exists" in again.output


@pytest.mark.slow
def test_audit_of_all_solvers_by_site(files):
    done = run_audit(*files, "-k", 2, "--solver", "all", "--refits", 0, "--by-site", "--scale")
    assert done.exit_code == 0, done.output
    for solver in SOLVERS:
        assert solver in done.output
    assert done.output.count("summed") >= 3 * len(SOLVERS)


def test_audit_passes_its_options_on(files, monkeypatch):
    from fedpca.audit import leakage

    asked = {}
    found = audit(unlike_sites(), 2, solvers="covariance", refits=0)
    monkeypatch.setattr(leakage, "audit", lambda *given, **options: asked.update(options) or found)
    more = ("--colluding", "b", "--simulate", "--seed", 7, "--max-rounds", 9, "--scale")
    assert run_audit(*files, "--refits", 2, *more).exit_code == 0
    due = {"solvers": None, "refits": 2, "colluding": ["b"], "simulate": True}
    due |= {"random_state": 7, "max_rounds": 9, "scale": True}
    assert asked.items() >= due.items()


def test_table_shows_the_site_that_is_known_best_and_its_rounds(files):
    done = run_audit(*files, "-k", 4, "--solver", "subspace-iteration", "--refits", 0)
    found = audit(dict(zip("abc", files, strict=True)), 4, solvers="subspace-iteration", refits=0)
    ends = [found.best("subspace-iteration", "summed", site) for site in found.sites]
    end = min(ends, key=lambda e: e.error)
    lines = done.output.replace("│", " ").splitlines()
    line = next(line.split() for line in lines if "summed" in line)
    first = found.best("subspace-iteration", "summed", end.site, 1).error
    assert line[2] == end.site
    assert line[-5] == f"{first:.2f}"
    assert line[-2:] == [str(end.round), f"{end.exposed:.2%}"]


def test_audit_refuses_what_it_cannot_do(files, tmp_path, monkeypatch):
    assert "must end in .csv" in run_audit(*files, "--table", tmp_path / "a.txt").output
    said = run_audit(*files, "--plot", tmp_path / "a.gif").output
    assert "must end in one of .png, .svg, .pdf" in said
    assert run_audit(*files, "--solver", "all", "--solver", "magic").exit_code == 2
    wrong = run_audit(*files, "--solver", "magic")
    assert wrong.exit_code == 2
    assert "unknown solver 'magic'" in wrong.output
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    missing = run_audit(*files, "--plot", tmp_path / "a.png")
    assert missing.exit_code == 2
    assert "fedpca[plot]" in missing.output
