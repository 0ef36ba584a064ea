"""Return what a diagnosis found as plain values, and print it as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA, StreamingPCA
from fedpca.estimators.diagnosis import Diagnosis
from fedpca.models.control_limits import ALPHA, ControlLimits
from fedpca.models.features import FeatureTable
from fedpca.report.contents import Fitted, components_of, feature_names
from fedpca.report.tables import new_table, print_table
from fedpca.solvers.site_map import SiteOnMap

N_FEATURES = 3  # features that are named for each direction of a site
N_LEADING = 5  # features with the largest contributions to a component
MAX_COMPONENTS, MAX_ANGLES = 20, 4  # at most this many are printed


def diagnosis_contents(
    fitted: Fitted, diagnosis: Diagnosis | None = None, *, alpha: float = ALPHA
) -> dict[str, Any]:
    """Return what is known about a fit, as values for JSON.

    Without a diagnosis, only values that follow from the model are known: variances, contributions, the
    limits of T2 and Q, and for some models the squared cosines. Values that are not known are None.
    """
    components, shares = components_of(fitted), 0.0
    table = []
    for component in components:
        shares += float(component.share) if component.site is None else 0.0
        table.append(
            {
                "component": component.name,
                **({} if component.site is None else {"site": component.site}),
                "variance": float(component.variance),
                "share": float(component.share),
                "cumulative": shares if component.site is None else None,
            }
        )
    contents: dict[str, Any] = {
        "components": table,
        "contributions": None,
        "cos2": None,
        "limits": None,
        "ranks": None,
        "sites": None,
        "why_no_sites": "the sites have not been asked",
        "cost": None,
    }
    if isinstance(fitted, FederatedPCA | StreamingPCA):
        contents["contributions"] = fitted.contributions().to_dict()
        cos2 = _cos2_of(fitted) if diagnosis is None else diagnosis.cos2()
        contents["cos2"] = None if cos2 is None else cos2.to_dict()
    if isinstance(fitted, FederatedPCA):
        limits = _limits_of(fitted if diagnosis is None else diagnosis, alpha)
        contents["limits"] = None if limits is None else vars(limits)
    if diagnosis is not None:
        names, ranks = feature_names(fitted), diagnosis.ranks
        contents["ranks"] = {
            "by_rule": dict(ranks.ranks),
            "unknown": dict(ranks.unknown),
            "consensus": ranks.consensus,
        }
        contents["why_no_sites"] = diagnosis.why_no_sites
        if diagnosis.sites is not None:
            contents["sites"] = [
                _about_site(name, site, diagnosis, names)
                for name, site in diagnosis.sites.sites.items()
            ]
        runs = (diagnosis.run_, diagnosis.sites_run_)
        contents["cost"] = {
            name: sum(getattr(run, name) for run in runs)
            for name in ("rounds", "bytes_up", "bytes_down")
        }
    return contents


def diagnosis_as_json(diagnosis: Diagnosis, *, alpha: float = ALPHA) -> str:
    """Return what a diagnosis found as JSON."""
    return json.dumps(diagnosis_contents(diagnosis.model, diagnosis, alpha=alpha), indent=2)


def print_diagnosis(out: Console, diagnosis: Diagnosis, *, alpha: float = ALPHA) -> None:
    """Print tables of variance, rank rules, limits, and sites."""
    contents = diagnosis_contents(diagnosis.model, diagnosis, alpha=alpha)
    cos2 = diagnosis.cos2()
    right = ("component", "variance", "share", "cumulative")
    table = new_table("Variance explained", (), right)
    leading = new_table(
        "Features with the largest contributions, and the share of each explained here",
        ("component", "features"),
        (),
    )
    for row, name in zip(contents["components"][:MAX_COMPONENTS], cos2.components, strict=False):
        figures = (f"{row['variance']:.6g}", f"{row['share']:.2%}", f"{row['cumulative']:.2%}")
        table.add_row(row["component"], *figures)
        top = diagnosis.model.contributions().leading(name, N_LEADING)
        texts = [
            f"{feature} {part:.0%} ({cos2[feature][name]:.2f})" for feature, part in top.items()
        ]
        leading.add_row(row["component"], ", ".join(texts))
    print_table(out, table)
    print_table(out, leading)
    _print_ranks(out, contents["ranks"])
    _print_limits(out, contents["limits"])
    if contents["sites"] is None:
        out.print(f"no map of sites: {contents['why_no_sites']}", soft_wrap=True)
        out.print(
            "from sums alone: variances, rank rules, squared cosines, and limits; not how sites differ"
        )
    else:
        _print_sites(out, contents["sites"])
    cost = contents["cost"]
    out.print(
        f"{cost['rounds']} rounds, {cost['bytes_up']:,} bytes from the sites, "
        f"{cost['bytes_down']:,} to them"
    )


def _print_ranks(out: Console, ranks: dict[str, Any]) -> None:
    table = new_table("How many components?", ("rule",), ("components",))
    for name, k in ranks["by_rule"].items():
        table.add_row(name, str(k))
    for name, reason in ranks["unknown"].items():
        table.add_row(name, f"unknown: {reason}")
    print_table(out, table)
    if ranks["consensus"] is not None:
        out.print(f"median of the rules: {ranks['consensus']}")


def _print_limits(out: Console, limits: dict[str, Any] | None) -> None:
    if limits is None:
        out.print("too few rows for limits of T2 and Q")
        return
    out.print(
        f"limits for new rows, beyond which {limits['alpha']:.2%} of ordinary rows are: "
        f"T2 {limits['t2']:.4g}, Q (SPE) {limits['q']:.4g}"
    )


def _print_sites(out: Console, sites: Sequence[dict[str, Any]]) -> None:
    table = new_table(
        "Sites",
        ("site",),
        (
            "rows",
            "within",
            "between",
            "explained",
            "angles",
            "mean apart",
            "spread apart",
            "moves",
        ),
    )
    for site in sites:
        table.add_row(
            site["site"],
            *(f"{site[name]:.1%}" for name in ("rows", "within", "between", "explained")),
            " ".join(f"{angle:.0f}°" for angle in site["angles_degrees"][:MAX_ANGLES]),
            *(f"{site[name]:.2f}" for name in ("means_apart", "spreads_apart")),
            f"{site['angle_without_degrees']:.2f}°",
        )
    print_table(out, table)
    out.print(
        "explained: the variance within the site that the components explain, as a share of what as "
        "many directions of its own would explain; angles: between these directions and the "
        "components; apart: 1 is chance; moves: the angle by which the components move if the site is "
        "left out",
        soft_wrap=True,
    )
    for site in sites:
        for kind, named in site["odd"].items():
            listed = ", ".join(f"{name} {weight:+.2f}" for name, weight in named.items())
            out.print(f"{site['site']} stands out in its {kind}, along {listed}", soft_wrap=True)


def _about_site(
    name: str, site: SiteOnMap, diagnosis: Diagnosis, features: Sequence[str]
) -> dict[str, Any]:
    """Return what a map of sites shows about one site, as plain values."""
    odd = {}
    if site.is_odd_in_mean:
        odd["mean"] = _largest(site.mean_direction, features)
    if site.is_odd_in_spread:
        odd["spread"] = _largest(site.spread_direction, features)
    change = site.components_without - diagnosis.model.components_
    component, feature = np.unravel_index(np.abs(change).argmax(), change.shape)
    return {
        "site": name,
        "rows": site.rows,
        "within": site.within,
        "between": site.between,
        "angles_degrees": site.angles.tolist(),
        "explained": site.explained,
        "means_apart": site.means_apart,
        "spreads_apart": site.spreads_apart,
        "spread_change": site.spread_change,
        "odd": odd,
        "angle_without_degrees": _degrees(site.angle_without),
        "most_changed_loading": {
            "component": str(component + 1),
            "feature": features[feature],
            "with": float(diagnosis.model.components_[component, feature]),
            "without": float(site.components_without[component, feature]),
        },
    }


def _largest(direction: Array, features: Sequence[str]) -> dict[str, float]:
    """Return the features with the largest weights in a direction, and these weights."""
    table = FeatureTable(tuple(features), ("direction",), direction[:, None])
    return table.leading("direction", N_FEATURES)


def _degrees(sine: float) -> float:
    return math.degrees(math.asin(min(1.0, sine)))


def _cos2_of(fitted: FederatedPCA | StreamingPCA) -> FeatureTable | None:
    """Return the squared cosines, or None if the model is not enough to compute them."""
    try:
        return fitted.cos2()
    except InputError:
        return None


def _limits_of(known: FederatedPCA | Diagnosis, alpha: float) -> ControlLimits | None:
    """Return the limits for new rows, or None if the model was fitted to too few rows."""
    try:
        if isinstance(known, Diagnosis):
            return known.limits(alpha)
        return known.control_limits(alpha)
    except InputError:
        return None
