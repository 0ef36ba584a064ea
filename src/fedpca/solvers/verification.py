"""Check in one round whether components are still those of the sites' rows.

    Y = A'A [V G],   T = V'Y_V,   R = Y_V - V T,   B = (I - V V') A'A (I - V V')

V holds the components of a model, and A the rows as a fit would standardize them now. G holds random
directions outside V. If the rows have not changed, then R is as small as it was after the fit, and the
mean, the total variance, and the variances along V are those of the model. Everything is a sum over
sites. No site reveals more than in a fit, and no question is asked that a fit does not ask.

The sites divide by the scale of the model. The coordinator then corrects for how much the scale has
changed since. So each site's explained share can be compared with its share in the fit, whatever
happened at the other sites.

The sine of the angle between V and the exact components is at most ``|R| / (theta_k - l)`` if no
eigenvalue of B exceeds l (Davis and Kahan). The same round bounds these eigenvalues by the smallest of

    trace B
    ||N|| + trace (B - N),   N = B G (G'B G)^+ G'B           since N <= B
    2 sqrt(2 / pi) max_i |B w_i|                             except with probability 2^-20

where w_i are the 20 normal vectors that G is made from.

Sources: Halko, Martinsson, and Tropp, "Finding structure with randomness" (2011), Lemma 4.1, for the
last bound; Gittens and Mahoney, "Revisiting the Nystroem method" (2016), for N.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import RunRecord
from fedpca.coordinator.warm_start import WarmStart
from fedpca.errors import InputError, PolicyRefused
from fedpca.facts import (
    BYTES,
    CHANGE,
    COUNT,
    DATA,
    VARIANCE,
    Column,
    Fact,
    Records,
    Section,
    Sections,
    cautions,
    choice,
)
from fedpca.linalg.dense import angle_bounds, outside, top_eigen
from fedpca.models.linear import Model
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script, maybe, script, then
from fedpca.rows.columns import some_of
from fedpca.rows.gaps import MISSING
from fedpca.rows.standardized import deviations, usable_energy
from fedpca.solvers.common_features import AGREEING, CommonFeatures, common_features
from fedpca.solvers.contract import (
    after_moments,
    check_choice,
    check_whole,
    columns_asked,
    covariance_product,
    scaled,
)
from fedpca.solvers.pca import explained_energy
from fedpca.solvers.standardize import (
    BINOMIAL,
    Moments,
    ask_moments,
    squares,
    standardize,
    standardize_sites,
)

PROGRAM = "verify"
TOL = 1e-6  # relative change that rounding or secure sums may cause
N_GUARDS = 20  # random directions; they bound the variance outside V except with probability 2^-20
LEAST_SHARE = 1e-6  # share of the first variance; changes of smaller ones are relative to it
NAMED_SHARE = 0.1  # share of the largest change at any site; sites that changed by more are named
PARAMETERS = ("n_components", "center", "scale", "missing", "by_site")


@dataclass(frozen=True)
class Statistic:
    """A number that a model states, what it is now, and how much it has changed.

    ``unit`` says what ``change`` is relative to. ``where`` names the feature or the component along
    which the change is largest.
    """

    name: str
    then: float
    now: float
    change: float
    allowed: float
    unit: str
    where: str = ""

    @property
    def has_drifted(self) -> bool:
        """Return whether the change exceeds what is allowed."""
        return not self.change <= self.allowed

    def in_words(self) -> str:
        """Return the change as a phrase."""
        where = f" along {self.where}" if self.where else ""
        return f"{self.name}{where} changed by {self.change:.2g} {self.unit}".rstrip()


STATISTIC = (
    Column("name", label="statistic"),
    Column("where", label="along"),
    Column("then", VARIANCE),
    Column("now", VARIANCE),
    Column("change", CHANGE),
    Column("allowed", CHANGE),
    Column("unit", DATA),
    Column("has_drifted", choice("drifted", "", is_alarm=True), ""),
)


@dataclass(frozen=True)
class Verdict:
    """Whether a model's components are still those of the sites' rows.

    ``statistics`` are the numbers that were compared. ``angle_bound`` bounds the sine of the angle
    between the model's components and the exact ones of the rows now; 1 means that this round could
    not bound it. ``fitted_bound`` is the bound that the model's own fit stated. ``changed_sites`` holds
    the change for each site whose explained share of the variance changed; it is None if the sites were
    not asked or did not answer. ``run`` is the record of the check.
    """

    statistics: tuple[Statistic, ...]
    angle_bound: float
    fitted_bound: float
    changed_sites: dict[str, float] | None = None
    run: RunRecord = field(default_factory=RunRecord, repr=False)

    @property
    def drifts(self) -> tuple[Statistic, ...]:
        """Return the statistics that changed, in descending order of their relative change."""
        drifted = [each for each in self.statistics if each.has_drifted]
        return tuple(sorted(drifted, key=lambda each: -each.change))

    @property
    def is_certified(self) -> bool:
        """Return whether nothing has changed."""
        return not self.drifts

    def __getitem__(self, name: str) -> Statistic:
        for each in self.statistics:
            if each.name == name:
                return each
        names = ", ".join(each.name for each in self.statistics)
        raise KeyError(f"{name!r} was not compared; use one of {names}")

    def in_words(self) -> str:
        """Return the verdict in one line."""
        if not self.is_certified:
            sites = ""
            if self.changed_sites:
                sites = f"; the rows changed at {', '.join(self.changed_sites)}"
            return f"drifted: {'; '.join(each.in_words() for each in self.drifts)}{sites}"
        if self.angle_bound < 1:
            angle = (
                "the sine of the angle between the components and the exact ones is at most "
                f"{self.angle_bound:.1e}"
            )
        else:
            angle = (
                "one round cannot bound the angle to the exact components, since a variance "
                "outside them may be as large as the last one; the fit bounded the angle's sine by "
                f"{self.fitted_bound:.1e}"
            )
        return f"certified: {angle}"

    def facts(self) -> Sections:
        """Return the verdict and what it rests on, those statistics first that drifted."""
        others = [each for each in self.statistics if not each.has_drifted]
        rows = [
            tuple(getattr(each, column.key) for column in STATISTIC)
            for each in (*self.drifts, *others)
        ]
        run, asked = self.run, self.changed_sites is not None
        facts = (
            Fact("n_sites", len(run.sites), COUNT, "sites"),
            Fact("rounds", run.rounds, COUNT),
            Fact("bytes_up", run.bytes_up, BYTES, "bytes from the sites"),
            Fact("bytes_down", run.bytes_down, BYTES, "bytes to the sites"),
            Fact("lost", run.lost, DATA),
            Fact("angle_bound", self.angle_bound, DATA),
            Fact("fitted_bound", self.fitted_bound, DATA),
            Fact("changed_sites", self.changed_sites, DATA),
            Fact("certified", self.is_certified, DATA),
            Fact("verdict", self.in_words()),
        )
        texts = [f"Lost in round {loss['round']}: {loss['reason']}" for loss in run.lost]
        if self.drifts and not asked:
            texts.append("No site is named, because the sites were not asked or did not answer.")
        return (
            Records("statistics", STATISTIC, rows),
            cautions(texts),
            Section("", facts),
        )


@dataclass(frozen=True)
class Claim:
    """What a model states about the rows that it was fitted to.

    ``slack`` is how far, as a share of the variance, the model's components and variances may be
    from those of the rows. ``shares`` holds the share of each site's variance that the components
    explained in the fit.
    """

    model: Model
    n_rows: int
    features: tuple[str, ...] | None
    center: bool
    scale: bool | str
    missing: str
    slack: float
    angle_bound: float
    shares: Mapping[str, float]


@dataclass(frozen=True)
class Present:
    """What sums over the sites show now, with features in the order of the model."""

    moments: Moments
    energy: float
    V: Array  # (d, k)
    product: Array  # (d, k), A'A V
    normal: Array  # (d, p), normally distributed vectors outside V
    normal_product: Array  # (d, p), A'A times ``normal``
    rounding: float
    shares: dict[str, float] | None


def verify_components(
    fed: Federation, start: WarmStart | None, *, claim: Claim, tol: float, by_site: bool
) -> Verdict:
    """Ask the sites for the sums that show whether the claim holds, and compare them."""
    common = common_features(fed, takes_weights=True, of_model=claim.features)
    order = _order(claim, common)
    V, scale = _in_order_of_sites(claim, order)
    moments = ask_moments(fed, common, center=True, scale=False, missing=claim.missing)
    factors = np.ones_like(scale)
    if claim.scale is True:  # a binomial scale follows from the mean
        about_mean = fed.sum(squares, mean=moments.mean)["squares"]
        now = deviations(about_mean / moments.weight, moments.mean, moments.n)
        factors = scale / now
    frame = replace(moments, scale=scale)
    if not claim.center:
        frame = replace(frame, mean=np.zeros_like(scale))
    d, k = V.shape
    width = min(N_GUARDS, d - k)
    energy = standardize_sites(fed, frame, k + width)
    normal = outside(V, fed.rng().standard_normal((d, width)))
    Q, R = np.linalg.qr(factors[:, None] * np.hstack([V, normal]))
    Y = fed.sum(covariance_product, Z=np.ascontiguousarray(Q))["Y"]
    products = factors[:, None] * (Y @ R)
    if claim.scale is True:
        about_center = about_mean if claim.center else about_mean + moments.weight * moments.mean**2
        energy = usable_energy(float((about_center / now**2).sum()))
        moments = replace(moments, scale=now)
    residual = float(np.linalg.norm(outside(V, products[:, :k])))
    fed.report(scaled(residual, energy), lambda: V)
    present = Present(
        replace(moments, mean=moments.mean[order], scale=moments.scale[order]),
        energy,
        V[order],
        products[order, :k],
        normal[order],
        products[order, k:],
        common.rounding,
        _shares(fed, V) if by_site else None,
    )
    return compare(claim, present, tol)


def compare(claim: Claim, present: Present, tol: float) -> Verdict:
    """Return the verdict on a claim about rows, given what the sites' sums show now."""
    tol = max(tol, present.rounding)
    names = claim.features or tuple(f"column {j}" for j in range(len(present.V)))
    T = present.V.T @ present.product
    theta, W = top_eigen((T + T.T) / 2, len(T))
    theta = np.maximum(theta, 0.0)
    least, most = _outside_bounds(present)
    statistics = (
        _rows(claim, present, tol),
        *_moments(claim, present, tol, names),
        *_variances(claim, present, np.diagonal(T), tol),
        _residual(claim, present, tol, names),
        _following(claim, present, float(theta[-1]), least, tol),
    )
    residuals = np.linalg.norm(present.product @ W - present.V @ W * theta, axis=0)
    residuals += present.moments.residuals_of_mean(present.V @ W, present.energy)
    bounds = angle_bounds(theta, residuals, len(theta), others=most, rounding=present.rounding)
    angle = 0.0 if len(T) == len(present.V) else float(bounds[-1])
    verdict = Verdict(statistics, angle, claim.angle_bound)
    if present.shares is None or not claim.shares:
        return verdict
    changed = {} if verdict.is_certified else _changed_sites(claim, present, tol)
    return replace(verdict, changed_sites=changed)


def _residual(claim: Claim, present: Present, tol: float, names: Sequence[str]) -> Statistic:
    """Return the residual of the components, and the feature in which it is largest."""
    R = outside(present.V, present.product)
    residual = scaled(float(np.linalg.norm(R)), present.energy)
    where = repr(names[int(np.linalg.norm(R, axis=1).argmax())])
    allowed = max(tol, claim.slack)
    return Statistic("residual", 0.0, residual, residual, allowed, "of the variance", where)


def _following(claim: Claim, present: Present, last: float, least: float, tol: float) -> Statistic:
    """Return by how much a variance outside the components certainly exceeds the last component's."""
    beyond = max(0.0, least / last - 1) if last > 0 else float(least > 0)
    allowed = tol + claim.slack * scaled(present.energy, last)
    name, unit = "variance outside the components", "of the last component's"
    return Statistic(name, last, least, beyond, allowed, unit)


def _rows(claim: Claim, present: Present, tol: float) -> Statistic:
    then, now = claim.n_rows, present.moments.n_rows
    return Statistic("number of rows", then, now, abs(now - then) / then, tol, "of all rows")


def _moments(claim: Claim, present: Present, tol: float, names: Sequence[str]) -> list[Statistic]:
    """Return the statistics of the mean and the scale, each at the feature that changed most."""
    model, moments = claim.model, present.moments
    found = []
    if claim.center:
        deviations = _deviations(model)
        moved = np.abs(moments.mean - model.mean) / deviations
        j = int(moved.argmax())
        then, now, change = float(model.mean[j]), float(moments.mean[j]), float(moved[j])
        # the mean of large values is rounded as much as the values are
        rounding = float(present.rounding * np.max(np.abs(model.mean) / deviations))
        allowed = max(tol, rounding)
        unit = "standard deviations"
        found.append(Statistic("mean", then, now, change, allowed, unit, repr(names[j])))
    if claim.scale is True:
        ratios = np.abs(moments.scale / model.scale - 1)
        j = int(ratios.argmax())
        then, now = float(model.scale[j]), float(moments.scale[j])
        where = repr(names[j])
        found.append(Statistic("scale", then, now, float(ratios[j]), tol, "of itself", where))
    return found


def _variances(claim: Claim, present: Present, energies: Array, tol: float) -> list[Statistic]:
    """Return the statistics of the total variance and of the component that changed most.

    The slack of a claim is a share of the total variance.
    """
    weight, before = present.moments.weight, claim.model.explained_variance
    freedom = weight - 1 if weight >= 2 else max(weight, 1e-300) / 2
    then, now = float(claim.model.total_variance), present.energy / freedom
    along = energies / freedom
    base = np.maximum(before, LEAST_SHARE * before[0] or float(np.finfo(np.float64).tiny))
    changes, limits = np.abs(along - before) / base, tol + claim.slack * then / base
    i = int((changes / limits).argmax())
    values = (float(before[i]), float(along[i]), float(changes[i]), float(limits[i]))
    return [
        Statistic("total variance", then, now, scaled(abs(now - then), then), tol, "of itself"),
        Statistic("explained variance", *values, "of itself", f"component {i + 1}"),
    ]


def _outside_bounds(present: Present) -> tuple[float, float]:
    """Return a lower and an upper bound on the largest variance outside the components."""
    V, W = present.V, present.normal
    d, k = V.shape
    trace = max(0.0, present.energy - float(np.vdot(V, present.product)))
    if not W.shape[1]:
        return 0.0, 0.0
    BW = outside(V, present.normal_product)
    G, R = np.linalg.qr(W)
    BG = BW @ np.linalg.pinv(R)
    within = G.T @ BG
    values, U = np.linalg.eigh((within + within.T) / 2)
    kept = values > present.rounding * max(float(values[-1]), 0.0)
    if not kept.any():
        return 0.0, trace
    if W.shape[1] == d - k:  # the vectors span everything outside V
        return float(values[-1]), float(values[-1])
    factor = BG @ (U[:, kept] / np.sqrt(values[kept]))
    found = np.linalg.svd(factor, compute_uv=False) ** 2
    least = float(found[0])
    rest = max(0.0, trace - float(found.sum()))
    likely = 2 * np.sqrt(2 / np.pi) * float(np.linalg.norm(BW, axis=0).max())
    return least, max(least, min(trace, least + rest, likely))


def _deviations(model: Model) -> Array:
    """Return the standard deviation of each feature according to the model, kept above zero."""
    squares = model.components**2
    variances = model.explained_variance @ squares
    variances = variances + float(model.noise_variance) * np.maximum(1 - squares.sum(axis=0), 0.0)
    typical = float(model.total_variance) / squares.shape[1]
    floor = LEAST_SHARE * typical or float(np.finfo(np.float64).tiny)
    return np.asarray(np.sqrt(np.maximum(variances, floor)) * model.scale)


def _changed_sites(claim: Claim, present: Present, tol: float) -> dict[str, float]:
    """Return the sites whose explained share changed, starting with the largest change."""
    now = present.shares or {}
    changes = {
        name: abs(now[name] - then)
        for name, then in claim.shares.items()
        if name in now and np.isfinite(now[name] - then)
    }
    strangers = {
        name: 1.0 for name in (*now, *claim.shares) if (name in now) != (name in claim.shares)
    }
    least = max(tol, NAMED_SHARE * max(changes.values(), default=0.0))
    found = {name: change for name, change in changes.items() if change > least} | strangers
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _shares(fed: Federation, V: Array) -> dict[str, float] | None:
    """Return the share of each site's variance that V explains, or None if a policy refuses."""
    try:
        with fed.optional():
            answers: dict[str, Arrays] = fed.gather(explained_energy, V=np.ascontiguousarray(V))
    except PolicyRefused:
        return None
    return {
        name: float(answer["explained"] / answer["total"]) if answer["total"] > 0 else float("nan")
        for name, answer in answers.items()
    }


def _order(claim: Claim, common: CommonFeatures) -> Array:
    """Return the position of each of the model's features among the sites' features."""
    d = claim.model.components.shape[1]
    if claim.features is None or common.names is None:
        if common.n_features != d:
            raise InputError(
                f"the model has {d} features, but the sites have {common.n_features} columns; use the "
                "same columns as the fit"
            )
        return np.arange(d)
    places = {name: j for j, name in enumerate(common.names)}
    lacking = [name for name in claim.features if name not in places]
    more = [name for name in common.names if name not in set(claim.features)]
    if lacking:
        raise InputError(
            f"the sites have no columns {some_of(lacking)}, which the model has; add them at all sites"
        )
    if more:
        raise InputError(
            f"the sites have columns {some_of(more)}, which the model does not have; leave them out at "
            "all sites, as the fit did"
        )
    return np.array([places[name] for name in claim.features])


def _in_order_of_sites(claim: Claim, order: Array) -> tuple[Array, Array]:
    """Return the model's components, ``(d, k)``, and scale, with features in the sites' order."""
    V, scale = np.empty_like(claim.model.components.T), np.empty_like(claim.model.scale)
    V[order], scale[order] = claim.model.components.T, claim.model.scale
    return V, scale


@script(PROGRAM)
def verify_script(plan: RunPlan) -> Script:
    """Return what `verify_components` asks: the moments, and one product with a block."""
    given = plan.parameters
    for name in given:
        if name not in (*PARAMETERS, "solver"):
            raise PolicyRefused(f"the plan has a parameter that {PROGRAM!r} does not have")
    check_whole("n_components", given.get("n_components"), 1)
    check_choice("missing", given.get("missing", "error"), MISSING)
    for name in ("center", "by_site"):
        check_choice(name, given.get(name, True), (True, False))
    check_choice("scale", given.get("scale", True), (True, False, BINOMIAL))
    moments = after_moments(
        plan,
        standardize,
        covariance_product,
        bounds={
            f"{covariance_product.name}.Z": columns_asked(plan, more=N_GUARDS),
            f"{explained_energy.name}.V": columns_asked(plan),
        },
    )
    shares = maybe(explained_energy) if given.get("by_site") else maybe()
    return Script(
        then(AGREEING, moments.order, shares),
        values=moments.values,
        bounds=moments.bounds,
        fixed=moments.fixed,
    )
