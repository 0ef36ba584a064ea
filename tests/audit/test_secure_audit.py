"""The leak lab listens to real runs with secure sums: single answers tell nothing, totals as before."""

from __future__ import annotations

import numpy as np
import pytest

from command_line import run as run_command
from fedpca import FederatedPCA
from fedpca.audit.leakage import audit
from fedpca.audit.transcript import record
from fedpca.errors import InputError
from fedpca.linalg.dense import unpack_triangle
from fedpca.solvers import SOLVERS

SUMMING = [name for name, solver in SOLVERS.items() if not solver.seen]
FROM_NO_MESSAGE = {"published"}


@pytest.fixture(scope="module")
def sites():
    """Return three sites whose covariances differ."""
    rng = np.random.default_rng(3)
    return {
        name: rng.standard_normal((n, 8)) * np.roll(np.geomspace(4, 0.4, 8), shift)
        for name, n, shift in (("a", 60, 0), ("b", 80, 3), ("c", 50, 5))
    }


def rows_of(sites):
    return {name: len(rows) for name, rows in sites.items()}


def covariance_of(sites, name):
    centered = sites[name] - np.concatenate(list(sites.values())).mean(axis=0)
    return centered.T @ centered


@pytest.mark.parametrize("solver", SUMMING)
def test_single_answers_under_masks_tell_no_more_than_totals(solver, sites):
    plain = audit(sites, 2, solvers=solver, refits=1, max_rounds=20)
    secure = audit(sites, 2, solvers=solver, refits=1, max_rounds=20, secure=True)
    for site in sites:
        seen, summed = (secure.best(solver, listener, site) for listener in ("seen", "summed"))
        assert seen.error >= summed.error * (1 - 1e-9)
        assert seen.attack in FROM_NO_MESSAGE
        # the attacks had answers to work with, and are far off
        tried = [e for e in secure.of(solver, "seen", site) if e.attack not in FROM_NO_MESSAGE]
        assert tried
        assert min(e.error for e in tried) > seen.error
        # the same attacks succeed on plain answers
        most = 0.9 if solver == "faps" else 0.5  # its own masks hide a part
        assert plain.best(solver, "seen", site).error < most * seen.error


def test_totals_under_masks_are_those_of_a_plain_run(sites):
    model = FederatedPCA(2, solver="covariance", random_state=0)
    run = record(model, sites, secure=True)
    heard = run.heard("b", "summed", rows_of(sites))
    triangle = next(h.answer["triangle"] for h in heard.messages if "triangle" in h.answer)
    share = len(sites["b"]) / sum(rows_of(sites).values())
    total = sum(covariance_of(sites, name) for name in sites)
    np.testing.assert_allclose(
        unpack_triangle(triangle), share * total, atol=1e-12 * np.trace(total)
    )


def test_what_the_coordinator_receives_is_not_the_answer(sites):
    run = record(FederatedPCA(2, solver="covariance"), sites, secure=True)
    received = {e.question: e.answers["a"] for e in run.rounds.values()}
    assert received["covariance_triangle"]["triangle"].dtype == np.int64
    assert int(received["count_and_sum"]["n"]) != len(sites["a"])
    assert {e.question for e in run.rounds.values() if e.masks is None} == {"column_names"}


def test_sites_that_collude_take_their_masks_out_of_a_sum_but_not_those_of_others(sites):
    one = audit(sites, 2, solvers="covariance", refits=0, colluding="a", secure=True)
    as_plain = audit(sites, 2, solvers="covariance", refits=0, colluding="a")
    for site in ("b", "c"):
        ours, told = (
            next(e.error for e in found.of("covariance", "summed", site) if e.attack == "as sent")
            for found in (one, as_plain)
        )
        assert ours == pytest.approx(told, rel=1e-9)
        assert one.best("covariance", "seen", site).attack in FROM_NO_MESSAGE


def test_all_other_sites_together_with_the_coordinator_know_a_sites_answers(sites):
    found = audit(sites, 2, solvers="covariance", refits=0, colluding=["a", "b"], secure=True)
    assert found.best("covariance", "seen", "c").error < 1e-12
    run = record(FederatedPCA(2, solver="covariance"), sites, secure=True)
    count = next(e for e in run.rounds.values() if e.question == "count_and_sum")
    n = {
        told: int(count.masks.sum(count.answers, ["c"], {k: run.secrets[k] for k in told})["n"])
        for told in (("a", "b"), ("a",), ())
    }
    assert n["a", "b"] == len(sites["c"])
    assert len(sites["c"]) not in (n["a",], n[()])


def test_by_default_the_lab_attacks_all_solvers_that_secure_sums_can_serve(sites):
    found = audit(sites, 2, refits=0, max_rounds=3, secure=True)
    assert list(found.solvers) == SUMMING
    with pytest.raises(InputError, match="no secure sum can hide"):
        audit(sites, 2, solvers="merge", secure=True)
    with pytest.raises(InputError, match="masked answers are random"):
        audit(sites, 2, solvers="faps", simulate=True, secure=True)


def test_the_command_attacks_runs_with_secure_sums(sites, tmp_path):
    for name, rows in sites.items():
        np.save(tmp_path / f"{name}.npy", rows)
    files = [tmp_path / f"{name}.npy" for name in sites]
    done = run_command(
        "audit", *files, "-k", "2", "--solver", "lanczos", "--refits", "0", "--secure"
    )
    assert done.exit_code == 0, done.output
    line = next(text for text in done.output.splitlines() if " seen " in text)
    assert "published" in line
    assert "masked unless it is gathered" in done.output
    refused = run_command("audit", *files, "--lying", "--secure")
    assert refused.exit_code == 2
    assert "--secure does not apply to --lying" in refused.output
