"""A plan tells what a fit would cost and keep, and asks nobody."""

from __future__ import annotations

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpca import FederatedPCA, Privacy
from fedpca.cli.app import app
from fedpca.solvers import SOLVERS

BASIC = ["plan", "--rows", "3000", "--features", "20", "-k", "3", "--sites", "4"]
PROMISE = ["--epsilon", "1", "--delta", "1e-6", "--row-bound", "6"]


def planned(*words):
    return CliRunner().invoke(app, [*BASIC, *words], terminal_width=200)


def share_in(text):
    return float(re.search(r"keep ([\d.]+)% of the variance", " ".join(text.split()))[1]) / 100


def test_every_solver_is_listed_with_its_bytes():
    text = planned().output
    for name, solver in SOLVERS.items():
        assert f"{solver.bytes_per_site(750, 20, 3):,}" in text
        assert name in text
    assert text.count("(auto)") == 1


def test_the_expected_share_is_that_of_real_fits_to_rows_like_the_public_ones(tmp_path):
    rng = np.random.default_rng(0)
    deviations = np.array([3.0, 2.0, 1.5] + 17 * [0.5])
    public, private = (rng.standard_normal((3000, 20)) * deviations for _ in range(2))
    FederatedPCA(5).fit(public).save(tmp_path / "public.fedpca")
    result = planned(*PROMISE, "--like", str(tmp_path / "public.fedpca"))
    exact = FederatedPCA(3).fit(private).components_
    kept = []
    for _ in range(5):
        promise = Privacy(epsilon=1.0, delta=1e-6, row_bound=6.0)
        found = FederatedPCA(3, privacy=promise).fit(np.array_split(private, 4)).components_
        scatter = private.T @ private
        kept.append(np.trace(found @ scatter @ found.T) / np.trace(exact @ scatter @ exact.T))
    assert abs(share_in(result.output) - np.mean(kept)) < 0.03


def test_more_privacy_keeps_less():
    shares = [
        share_in(planned("--epsilon", epsilon, *PROMISE[2:]).output) for epsilon in ("0.05", "1")
    ]
    assert shares[0] < 0.9 < shares[1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-k", "21"], "-k 21 exceeds the 20 components"),
        (["--epsilon", "1"], "--epsilon also needs --delta and --row-bound"),
        (["--like", "model.fedpca"], "--like describes rows for --epsilon"),
    ],
)
def test_what_cannot_be_planned_is_refused(words, text):
    result = planned(*words)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())


def test_a_model_with_other_features_is_refused(tmp_path):
    FederatedPCA(2).fit(np.random.default_rng(0).standard_normal((30, 5))).save(tmp_path / "m")
    result = planned(*PROMISE, "--like", str(tmp_path / "m"))
    assert "has 5 features, not 20" in " ".join(result.output.split())
