"""Certify a fitted model against the rows that the sites have now."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.errors import InputError
from fedpca.estimators.federated import FederatedPCA
from fedpca.estimators.fitting import as_federation, is_path, without_labels
from fedpca.estimators.streaming import StreamingPCA
from fedpca.solvers.contract import check_positive
from fedpca.solvers.standardize import BINOMIAL
from fedpca.solvers.verification import PROGRAM, TOL, Claim, Verdict, verify_components

if TYPE_CHECKING:
    from fedpca.coordinator.record import RunRecord


def verify(
    model: FederatedPCA | StreamingPCA | str | os.PathLike[str],
    X: Any,
    *,
    sites: Any = None,
    sample_weight: Any = None,
    tol: float = TOL,
    by_site: bool = False,
) -> Verdict:
    """Check in one round whether a model's components are those of the sites' current rows.

    The sites are asked for sums only: the number of rows, the mean, the scale if the model has one, the
    total variance, and one product with the components and a few random directions. So a site whose
    policy allows a fit also allows verification, which works with secure sums too.

    Parameters
    ----------
    model : FederatedPCA, StreamingPCA, or path
        The fitted model, or its file.
    X : rows, list or dict of rows, or Federation
        The current rows, as for `FederatedPCA.fit`.
    sites, sample_weight
        As for `FederatedPCA.fit`.
    tol : float
        The largest relative change to ignore, in addition to the error that the model's fit stated. A
        larger number accepts more drift.
    by_site : bool
        Whether to ask each site what share of its variance the components explain, so that the verdict
        can name the sites whose rows changed. If a policy refuses that, no site is named.

    Examples
    --------
    >>> import numpy as np
    >>> import fedpca
    >>> rng = np.random.default_rng(0)
    >>> rows = {name: rng.normal(size=(50, 4)) * [4, 2, 1, 1] for name in ("north", "south")}
    >>> model = fedpca.FederatedPCA(2).fit(rows)
    >>> fedpca.verify(model, rows).is_certified
    True
    >>> rows["south"][:3] += 1
    >>> verdict = fedpca.verify(model, rows, by_site=True)
    >>> verdict.is_certified, list(verdict.changed_sites)
    (False, ['south'])
    """
    from fedpca.estimators import load

    check_positive("tol", tol)
    fitted = load(model) if isinstance(model, str | os.PathLike) else model
    claim = claim_of(fitted)
    X, sites = without_labels(X, sites)
    if is_path(X):
        X = [X]
    fed = as_federation(X, sites, sample_weight)
    identity = {
        "program": PROGRAM,
        "parameters": {
            "n_components": len(claim.model.components),
            "center": claim.center,
            "scale": claim.scale,
            "missing": claim.missing,
            "by_site": by_site,
        },
    }
    program = partial(verify_components, claim=claim, tol=tol, by_site=by_site)
    verdict = fed.run(program, identity=identity)
    return replace(verdict, run=fed.record)


def claim_of(fitted: Any) -> Claim:
    """Return what a fitted model claims about the rows that it was fitted to."""
    if not isinstance(fitted, FederatedPCA | StreamingPCA):
        raise InputError(
            f"a {type(fitted).__name__} cannot be verified in one round; use a FederatedPCA or a "
            "StreamingPCA"
        )
    if getattr(fitted, "privacy", None) is not None:
        raise InputError(
            "the model has noise for differential privacy and cannot be verified: exact sums would "
            "differ from the model, and would break the promise; verify a model without privacy"
        )
    model, names = fitted._model(), getattr(fitted, "feature_names_in_", None)
    defect = model.components @ model.components.T - np.eye(len(model.components))
    if np.abs(defect).max(initial=0.0) > TOL:
        raise InputError(
            "the model's components are not orthonormal, so its file is damaged; use an intact copy"
        )
    is_stream = isinstance(fitted, StreamingPCA)
    k = len(model.components)
    bound = fitted.angle_bound_ if is_stream else fitted.run_.angle_bound
    return Claim(
        model=model,
        n_rows=int(fitted.n_samples_seen_ if is_stream else fitted.n_samples_),
        features=None if names is None else tuple(str(name) for name in names),
        center=bool(fitted.center),
        scale=fitted.scale if fitted.scale == BINOMIAL else bool(fitted.scale),
        missing=str(getattr(fitted, "missing", "error")),
        slack=2.0 * float(bound if is_stream else _left_by(fitted.run_, k)),
        angle_bound=float(bound),
        shares={} if is_stream else dict(fitted.site_variance_ratio_),
    )


def _left_by(run: RunRecord, k: int) -> float:
    """Return the residual in a fit's record: how far the components may be from eigenvectors."""
    residuals = [entry["residual"] for entry in run.history if entry["residual"] is not None]
    return max(float(np.sqrt(k) * run.left_out), float(residuals[-1]) if residuals else 0.0)
