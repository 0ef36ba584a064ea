"""Diagnose a fit: how many components there are, which rows are unusual, and which sites differ."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import RunRecord
from fedpca.errors import InputError, JournalError, PolicyRefused
from fedpca.estimators.federated import FederatedPCA
from fedpca.estimators.fitting import as_federation, without_labels
from fedpca.estimators.rank_search import in_memory, standardized
from fedpca.estimators.streaming import StreamingPCA
from fedpca.estimators.weights import without_column
from fedpca.facts import (
    ANGLE,
    BYTES,
    COUNT,
    DATA,
    SHARE,
    VARIANCE,
    Column,
    Fact,
    Records,
    Section,
    Sections,
    ValueKind,
    Weights,
    cautions,
    names_of_features,
    records_of_components,
)
from fedpca.linalg.parallel_analysis import count_above, permuted_floor
from fedpca.linalg.rank_rules import RankComparison, compare_ranks
from fedpca.models.control_limits import ALPHA, ControlLimits, control_limits
from fedpca.models.features import FeatureTable
from fedpca.protocol.printable import printable
from fedpca.rows.in_memory import Rows, about_n_rows
from fedpca.rows.open import is_dask
from fedpca.rows.weighted import WeightedRows
from fedpca.solvers.diagnosis import Facts, diagnose_sums
from fedpca.solvers.one_round.merge import Merge
from fedpca.solvers.site_map import MAX_DIRECTIONS, SiteMap, SiteOnMap, map_sites

N_MORE_DIRECTIONS = 10  # directions that a site sends in addition to the components
LEAST_DIRECTIONS = 100  # a site sends at least this many directions, so that little is left out
MAX_PERMUTED_ENTRIES = 20_000_000  # most entries of rows that are permuted in memory
EIGENVALUE_TOL = 1e-6  # relative residual; only the sizes of the eigenvalues matter
MAX_EIGENVALUE_ROUNDS = 100


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What a model, sums over its sites, and a map of the sites show about a fit.

    Parameters
    ----------
    model : FederatedPCA
        The model that was diagnosed.
    n_rows : int
        The number of rows that the sites have now.
    variances : ndarray of shape (p,)
        All eigenvalues of the covariance, or only the leading ones if there are many features.
    total_variance : float
        The sum of all eigenvalues.
    feature_variances : ndarray of shape (d,)
        The variance of each feature, in the feature's original unit.
    ranks : RankComparison
        How many components each rule finds, and the median number, `RankComparison.consensus`.
    residual_traces : ndarray of shape (3,)
        How variance is spread outside the components; see `FederatedPCA.residual_traces_`.
    sites : SiteMap or None
        How the sites compare, and how the components depend on each site; None without a site map.
    why_no_sites : str
        Why there is no site map; empty if there is one.
    run_, sites_run_ : RunRecord
        The records of two runs, which say what the sums and the site map cost and revealed.
    """

    model: FederatedPCA
    n_rows: int
    variances: Array
    total_variance: float
    feature_variances: Array
    ranks: RankComparison
    residual_traces: Array
    sites: SiteMap | None
    why_no_sites: str
    run_: RunRecord
    sites_run_: RunRecord

    def cos2(self) -> FeatureTable:
        """Return the share of each feature's variance that each component explains."""
        return self.model.cos2(self.feature_variances)

    def limits(
        self, alpha: float = ALPHA, *, new_rows: bool = True, method: str = "moments"
    ) -> ControlLimits:
        """Return limits like `FederatedPCA.control_limits`, but from the sums of the diagnosis."""
        return control_limits(
            self.model.model_,
            is_centered=self.model.center,
            traces=self.residual_traces,
            alpha=alpha,
            is_for_new_rows=new_rows,
            method=method,
        )

    def facts(self, alpha: float = ALPHA) -> Sections:
        """Return what was found, as sections of facts; ``alpha`` is as in `limits`."""
        runs = (self.run_, self.sites_run_)
        units = {"rounds": COUNT, "bytes_up": BYTES, "bytes_down": BYTES}
        labels = ("rounds", "bytes from the sites", "bytes to the sites")
        cost = [
            Fact(name, sum(getattr(run, name) for run in runs), kind, label)
            for (name, kind), label in zip(units.items(), labels, strict=True)
        ]
        features, cos2 = contributions(self.model, self.cos2())
        components = records_of_components(self.model._named_components())
        parts = (
            Fact("contributions", self.model.contributions().to_dict(), DATA),
            Fact("cos2", cos2, DATA),
        )
        texts = []
        for name, site in {} if self.sites is None else self.sites.sites.items():
            texts += self._oddities(name, site)
        why = Fact("why_no_sites", self.why_no_sites, label="no map of sites", note=ONLY_SUMS)
        return (
            components.only("component", "variance", "share", "cumulative"),
            features,
            Section("", parts),
            Records("ranks.by_rule", RANK, [*self.ranks.ranks.items()], RANKS, by_first=True),
            Records(
                "ranks.unknown",
                UNKNOWN,
                [*self.ranks.unknown.items()],
                by_first=True,
                as_lines=True,
            ),
            Section(
                "ranks", (Fact("consensus", self.ranks.consensus, COUNT, "median of the rules"),)
            ),
            limits_section(self, alpha),
            Section("", (Fact("sites", None, DATA), why)),
            *(() if self.sites is None else (self._map(self.sites),)),
            cautions(texts),
            Section("cost", tuple(cost)),
        )

    def _map(self, sites: SiteMap) -> Records:
        """Return how each site compares with the others, those first without which most changes."""
        ordered = sorted(sites.sites.items(), key=lambda item: -item[1].angle_without)
        names = names_of_features(_names_of(self.model), self.model.n_features_in_)
        rows = []
        for name, site in ordered:
            total = site.within + site.between
            change = site.components_without - self.model.components_
            component, j = np.unravel_index(np.abs(change).argmax(), change.shape)
            changed = {
                "component": str(component + 1),
                "feature": names[j],
                "with": float(self.model.components_[component, j]),
                "without": float(site.components_without[component, j]),
            }
            known = {
                "site": name,
                "by_mean": site.between / total if total else 0.0,
                "angles_degrees": site.angles,
                "angle_without_degrees": math.degrees(math.asin(min(1.0, site.angle_without))),
                "odd": self._odd(site),
                "most_changed_loading": changed,
            }
            rows.append(tuple(known.get(c.key, getattr(site, c.key, None)) for c in SITE))
        return Records("sites", SITE, rows, "Sites", ABOUT_SITES)

    def _odd(self, site: SiteOnMap) -> dict[str, dict[str, float]]:
        """Return in what a site stands out, and the features along which it does most."""
        names = names_of_features(_names_of(self.model), self.model.n_features_in_)
        odd = {
            "mean": (site.is_odd_in_mean, site.mean_direction),
            "spread": (site.is_odd_in_spread, site.spread_direction),
        }
        return {
            what: Weights(names, direction).leading(N_FEATURES)
            for what, (is_odd, direction) in odd.items()
            if is_odd
        }

    def _oddities(self, name: str, site: SiteOnMap) -> list[str]:
        return [
            f"{name} stands out in its {what}, along "
            + ", ".join(f"{feature} {weight:+.2f}" for feature, weight in along.items())
            for what, along in self._odd(site).items()
        ]


ONLY_SUMS = (
    "sums alone tell variances, rank rules, squared cosines, and limits, not how sites differ"
)
RANKS = "How many components?"
RANK = (Column("rule"), Column("components", COUNT))
UNKNOWN = (Column("rule"), Column("reason"))
N_FEATURES = 3  # features that are named for each direction of a site
N_CONTRIBUTING = 5  # features with the largest contributions to a component
MAX_FEATURE_CHARS = 40  # characters of a feature's name in a list of features
MAX_ANGLES = 4  # angles of a site that people see
ANGLES = ValueKind(lambda angles: " ".join(f"{angle:.0f}°" for angle in angles[:MAX_ANGLES]))
DISTANCE = ValueKind("{:.2f}".format)
SITE = (
    Column("site"),
    Column("rows", SHARE),
    Column("within", SHARE),
    Column("between", SHARE),
    Column("by_mean", SHARE),
    Column("explained", SHARE),
    Column("angles_degrees", ANGLES, "angles"),
    Column("means_apart", DISTANCE, "mean apart"),
    Column("spreads_apart", DISTANCE, "spread apart"),
    Column("spread_change", DATA),
    Column("odd", DATA),
    Column("angle_without_degrees", ANGLE, "moves"),
    Column("most_changed_loading", DATA),
)
ABOUT_SITES = (
    "by mean: the share of the site's variance that its mean causes; explained: the variance within "
    "the site that the components explain, as a share of what as many directions of its own would "
    "explain; angles: between these directions and the components; apart: 1 is chance; moves: the "
    "angle by which the components move if the site is left out"
)


def contributions(
    model: FederatedPCA | StreamingPCA, cos2: FeatureTable | None = None
) -> tuple[Records, dict[str, dict[str, float]] | None]:
    """Return the features that contribute most to each component, and the squared cosines, if known."""
    if cos2 is None:
        with suppress(InputError):  # some models are not enough to compute them
            cos2 = model.cos2()
    found, lines = model.contributions(), []
    for number, name in enumerate(found.components, start=1):
        texts = [
            f"{printable(feature, MAX_FEATURE_CHARS)} {part:.0%}"
            + ("" if cos2 is None else f" ({cos2[feature][name]:.2f})")
            for feature, part in found.leading(name, N_CONTRIBUTING).items()
        ]
        lines.append((str(number), ", ".join(texts)))
    title = "Features with the largest contributions"
    if cos2 is not None:
        title += ", and the share of each feature's own variance that is explained here (cos2)"
    columns = (Column("component"), Column("features"))
    records = Records(None, columns, lines, title, n_shown=20)
    return records, None if cos2 is None else cos2.to_dict()


def limits_section(known: FederatedPCA | Diagnosis, alpha: float = ALPHA) -> Section:
    """Return the limits for new rows as facts, or why there are none."""
    try:
        found = known.limits(alpha) if isinstance(known, Diagnosis) else known.control_limits(alpha)
    except InputError:
        return Section("", (Fact("limits", None, FEW),), LIMITS)
    facts = (
        Fact("t2", found.t2, VARIANCE, "T2"),
        Fact("q", found.q, VARIANCE, "Q (SPE)"),
        Fact("alpha", found.alpha, SHARE, "ordinary rows beyond each limit"),
        Fact("is_for_new_rows", found.is_for_new_rows, DATA),
        Fact("basis", found.basis),
    )
    return Section("limits", facts, LIMITS)


LIMITS = "Limits for new rows"
FEW = ValueKind(unknown="the fit has too few rows for limits of T2 and Q")


def diagnose(
    model: FederatedPCA,
    X: Any,
    *,
    sites: Any = None,
    sample_weight: Any = None,
    site_map: bool = True,
    n_permutations: int = 0,
    random_state: int = 0,
) -> Diagnosis:
    """Diagnose a fitted model by asking the sites whose rows it was fitted to.

    Parameters
    ----------
    model : FederatedPCA
        The fitted model.
    X, sites, sample_weight
        The sites, as for `FederatedPCA.fit`.
    site_map : bool
        Whether to ask each site for a summary of its rows, as the solver "merge" does. A site whose
        policy does not allow that solver refuses; `Diagnosis.why_no_sites` then says so. All other
        results come from sums, as in a second fit.
    n_permutations : int
        How many times to shuffle each column's values among all rows, for example 20. Any
        number above 0 adds the rank rule "permutations". This rule needs the rows of all sites in
        this process, whereas the rule "sign-flips" needs only sums.
    random_state : int
        The seed for random signs, directions, and permutations.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA, diagnose
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 8)) + 0.3 * rng.normal(size=(300, 8))
    >>> clinics = {"north": rows[:200], "south": rows[200:]}
    >>> found = diagnose(FederatedPCA(2).fit(clinics), clinics)
    >>> found.ranks.consensus, found.sites.odd_sites
    (2, [])
    """
    _check(model, n_permutations, random_state)
    X, sites = without_labels(X, sites)
    if isinstance(sample_weight, str) and not is_dask(X):
        X, sample_weight = without_column(X, sample_weight)
    fed = as_federation(X, sites, sample_weight)
    # a plan with the rule "auto" lets the coordinator look at the spectrum
    frame = {"center": model.center, "scale": model.scale, "missing": model.missing}
    given = {"model": model.model_, "features": _names_of(model)}
    plain = {
        **frame,
        "n_components": "auto",
        "tol": EIGENVALUE_TOL,
        "max_rounds": MAX_EIGENVALUE_ROUNDS,
    }
    facts, run = _run(fed, diagnose_sums, "Diagnosis", plain, given, random_state)
    mapped, reason, sites_run = None, "it was not asked for (site_map=False)", RunRecord()
    if site_map and fed.terms.secure:
        reason = "secure sums hide each site's summary; use a federation without secure sums"
    elif site_map:
        k, d = model.components_.shape
        n_directions = min(d, max(k + N_MORE_DIRECTIONS, LEAST_DIRECTIONS), MAX_DIRECTIONS)
        plain = {**frame, "n_components": n_directions}
        solver = Merge.name  # this solver reveals as much as a site map
        try:
            with fed.optional():
                mapped, sites_run = _run(
                    fed, map_sites, "SiteMap", plain, given, random_state, solver
                )
            reason = ""
        except (PolicyRefused, JournalError) as refused:  # a journal holds only one run
            reason = str(refused)
    ranks = compare_ranks(
        facts.spectrum,
        {
            "sign-flips": facts.sign_flips,
            **_by_permutations(model, fed, facts, n_permutations, random_state),
        },
    )
    freedom = facts.weight - 1
    return Diagnosis(
        model=model,
        n_rows=facts.n_rows,
        variances=facts.spectrum.values / freedom,
        total_variance=facts.spectrum.total / freedom,
        feature_variances=facts.squares / freedom * model.scale_**2,
        ranks=ranks,
        residual_traces=facts.traces,
        sites=mapped,
        why_no_sites=reason,
        run_=run,
        sites_run_=sites_run,
    )


def _run(
    fed: Federation,
    program: Any,
    name: str,
    plain: Mapping[str, Any],
    given: Mapping[str, Any],
    seed: int,
    solver: str | None = None,
) -> tuple[Any, RunRecord]:
    """Run a program that examines a model, and return its result and the run record."""
    arrays = given["model"].arrays()
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays.values())).hexdigest()
    identity = {"program": name, "parameters": {**plain, "solver": solver}, "model": digest}
    result = fed.run(
        lambda fed, start: program(fed, start, **plain, **given), identity=identity, seed=seed
    )
    return result, fed.record.with_outcome(result.outcome)


def _check(model: Any, n_permutations: Any, random_state: Any) -> None:
    """Refuse invalid options and a model that cannot be diagnosed, before any site is asked."""
    if not isinstance(model, FederatedPCA):
        raise InputError(
            f"diagnose takes a fitted FederatedPCA, not {type(model).__name__}; fit one to the same "
            "sites"
        )
    model._model()
    if model.privacy is not None:
        raise InputError(
            "the model is differentially private, but a diagnosis asks for exact sums, which would "
            "break the promise; use the model's loadings, contributions, and control_limits, which "
            "ask no site"
        )
    for name, value in (("n_permutations", n_permutations), ("random_state", random_state)):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
            raise InputError(f"{name}={value!r} must be a whole number of at least 0")


def _by_permutations(
    model: FederatedPCA, fed: Federation, facts: Facts, n_draws: int, seed: int
) -> dict[str, int | str | None]:
    """Return what the rule "permutations" finds, or why it cannot be applied."""
    if not n_draws:
        return {}
    rows = _open_rows(model, fed)
    if isinstance(rows, str):
        return {"permutations": rows}
    features = _names_of(model)
    tables = [in_memory("the rows", own, features) for own in rows]
    A = np.vstack([standardized(table, model.model_) for table in tables])
    values = facts.spectrum.values
    found = count_above(values, permuted_floor(A, len(values), int(n_draws), seed))
    is_all = found is None and facts.spectrum.is_whole
    return {"permutations": len(values) if is_all else found}


def _open_rows(model: FederatedPCA, fed: Federation) -> list[Rows] | str:
    """Return all sites' rows if this process may read them, and otherwise why it may not."""
    if not fed.engine.sites:
        return "needs all rows in this process; sign-flips needs only sums"
    sites = list(fed.engine.sites.values())
    if not all(site.policy.is_open for site in sites):
        return "the sites' policies protect their rows; sign-flips needs only sums"
    if model.missing != "error" or any(isinstance(site.rows, WeightedRows) for site in sites):
        return "rows with weights or missing values are not permuted"
    if sum(about_n_rows(site.rows) for site in sites) * model.n_features_in_ > MAX_PERMUTED_ENTRIES:
        return f"the rows have more than {MAX_PERMUTED_ENTRIES:,} entries"
    return [site.rows for site in sites]


def _names_of(model: FederatedPCA) -> tuple[str, ...] | None:
    """Return the names of the model's features, if they have any."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else tuple(str(name) for name in names)
