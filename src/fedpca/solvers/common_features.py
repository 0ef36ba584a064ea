"""Find the features that all sites have in common, before anything is asked about rows.

Columns are matched by name, in the order of the first site, or by position if no site has names.
Cohorts of genotypes rarely have the same variants, so they agree on those that all of them have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.warm_start import WarmStart
from fedpca.errors import InputError, MessageError
from fedpca.linalg.dense import ROUNDING
from fedpca.protocol.question import question
from fedpca.protocol.script import maybe, then
from fedpca.rows.columns import column_order, some_of
from fedpca.rows.genotypes.genotype_rows import GenotypeRows
from fedpca.rows.genotypes.variants import NOT_EVERYWHERE, common_variants, misnamed_variant
from fedpca.rows.weighted import WeightedRows

if TYPE_CHECKING:
    from fedpca.site.site import Site

MAX_NAMES_BYTES = 64 << 20  # largest size of one site's column names as JSON


@dataclass(frozen=True)
class CommonFeatures:
    """The features that all sites have in common."""

    n_features: int
    names: tuple[str, ...] | None
    in_order: bool  # whether all sites have these features in the same order
    has_weights: bool = False  # whether the rows of any site have weights
    rounding: float = ROUNDING  # error of products with rows, as a share of the largest eigenvalue
    left_out: Mapping[str, str] | None = None  # for genotypes: the variants left out, and why

    @property
    def to_ask(self) -> Array:
        """Return the names as a message field, which is empty if no site has to reorder columns."""
        return names_to_bytes(None if self.in_order else self.names)

    def matched(self, start: WarmStart | None) -> Array | None:
        """Return the subspace to start from, with a row for each of these features."""
        return None if start is None else start.among(self.names)


def misnamed(answer: Arrays, _: Arrays) -> str | None:
    """Return what is wrong with the column names in an answer, or None if nothing is."""
    if not answer["features"].size:
        return None
    try:
        names = json.loads(answer["features"].tobytes())
        "".join(names).encode()  # fails if an item is not a string, or a file cannot hold it
    except (ValueError, TypeError, RecursionError):
        names = None
    if not isinstance(names, list):
        return "has column names that are not a list of strings"
    if len(set(names)) != len(names):
        return "has the same name for two columns"
    if len(names) != answer["n_features"]:
        return f"has {len(names)} column names for {int(answer['n_features'])} columns"
    if "are_variants" in answer and answer["are_variants"] and misnamed_variant(names):
        return "has variant names that are not of the form CHROMOSOME:POSITION:ID:ALLELE:ALLELE"
    return None


@question(
    verb="gather",
    doing="asking for column names",
    answers={
        "features": "uint8 bytes",
        "n_features": "int64, count",
        "has_weights": "int64, count, weighted",
        "rounding": "float64, share",
        "are_variants": "int64, count",
        "log_normalized": "float64, nonnegative",
    },
    remembers=True,
    reads_rows=False,
    at_most={"bytes": str(MAX_NAMES_BYTES)},
    check=misnamed,
)
def column_names(site: Site) -> dict[str, Any]:
    """Send the number of a site's columns, their names as JSON, and whether its rows have weights.

    ``rounding`` is the error of the site's products with rows, as a share of the largest
    eigenvalue. ``log_normalized`` is the sum to which the site normalizes its cells, or zero if it
    does not normalize them. The site remembers that it answered, so after a restart it must still
    have the same rows. For genotypes, the names are those of the variants, except for variants that
    the policy does not allow in sums.
    """
    site.leave_out_few()
    return {
        "features": names_to_bytes(site.rows.features),
        "n_features": np.int64(site.rows.n_features),
        "has_weights": np.int64(isinstance(site.rows, WeightedRows)),
        "rounding": np.float64(getattr(site.rows, "rounding", ROUNDING)),
        "are_variants": np.int64(isinstance(site.rows, GenotypeRows)),
        "log_normalized": np.float64(site.log_normalized),
    }


def common_features(
    fed: Federation, *, takes_weights: bool = False, of_model: Sequence[str] | None = None
) -> CommonFeatures:
    """Compare the columns of all sites and return the features that they have in common.

    The features are in the first site's order. No question is asked about rows. Sites that normalize
    their cells differently are refused. So are sites whose rows have weights, unless the program takes
    weights. Sites with genotypes agree on the variants that all of them have, or on those of a model;
    see `fedpca.rows.genotypes.variants`.
    """
    answers = fed.gather(column_names)
    if all(answer["are_variants"] for answer in answers.values()):
        return _common_variants(fed, answers, of_model)
    weighted = [name for name, answer in answers.items() if answer["has_weights"]]
    if weighted and not takes_weights:
        raise InputError(
            f"the rows of {some_of(weighted)} have weights, which only FederatedPCA uses; create these "
            "sites without weight="
        )
    first, *others = answers
    fed.report_log_normalized(_common_normalization(answers))
    reference = names_from_bytes(answers[first]["features"])
    n_features = int(answers[first]["n_features"])
    in_order = True
    for name in others:
        features = names_from_bytes(answers[name]["features"])
        d = int(answers[name]["n_features"])
        where = f"site {name!r}, compared with site {first!r}"
        if (features is None) != (reference is None):
            raise InputError(
                f"{where}: one has column names and the other has none; name the columns of both"
            )
        if features is not None and reference is not None:
            in_order &= column_order(reference, features, where) is None
        elif d != n_features:
            raise InputError(
                f"{where}: {d} columns instead of {n_features}; use the same columns at all sites"
            )
    if n_features < 1:
        raise InputError("0 feature(s): the rows have no columns while a minimum of 1 is required")
    fed.bind(d=n_features, features=reference)
    rounding = max(ROUNDING, *(float(answer["rounding"]) for answer in answers.values()))
    return CommonFeatures(n_features, reference, in_order, bool(weighted), rounding)


def _common_normalization(answers: Mapping[str, Arrays]) -> float:
    """Return the sum to which all sites normalize their cells; refuse sites that differ.

    Values that were normalized to another sum, or not at all, would look like a difference between
    sites.
    """
    targets = {name: float(answer["log_normalized"]) for name, answer in answers.items()}
    first, *others = targets
    for name in others:
        if targets[name] != targets[first]:
            one, other = (_in_words(targets[site]) for site in (name, first))
            raise InputError(
                f"site {name!r} {one}, but site {first!r} {other}; use the same log_normalize at all "
                "sites"
            )
    return targets[first]


def _in_words(target: float) -> str:
    return f"log-normalizes its cells to {target:.17g}" if target else "does not normalize cells"


def _common_variants(
    fed: Federation, answers: Mapping[str, Arrays], of_model: Sequence[str] | None
) -> CommonFeatures:
    """Agree on the variants that all sites have, or on those of a model."""
    named = {name: names_from_bytes(answer["features"]) or () for name, answer in answers.items()}
    for name, variants in named.items():
        if not variants:
            raise InputError(
                f"site {name!r} has no variants to offer; see whether its policy leaves out all of them"
            )
    kept, left_out = common_variants(named)
    if of_model is not None:
        kept = _those_of_model(of_model, kept, left_out)
    common = CommonFeatures(len(kept), kept, in_order=True, left_out=left_out)
    if all(variants == kept for variants in named.values()):
        fed.bind(d=len(kept), features=kept)
        return common
    return ask_to_use(fed, common, kept)


def _those_of_model(
    of_model: Sequence[str], kept: Sequence[str], left_out: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the variants of a model, or refuse sites that cannot agree on all of them."""
    common = set(kept)
    lacking = [name for name in of_model if name not in common]
    if lacking:
        reason = left_out.get(lacking[0], NOT_EVERYWHERE)
        raise InputError(
            f"the sites do not share {len(lacking):,} of the model's {len(of_model):,} variants, "
            f"such as {lacking[0]} ({reason}); use the cohorts of the fit"
        )
    return tuple(of_model)


def not_as_asked(answer: Arrays, asked: Arrays) -> str | None:
    """Return what is wrong with the number of variants that a site uses, or None if nothing is."""
    wanted = names_from_bytes(asked["features"]) or ()
    is_same = int(answer["n_features"]) == len(wanted)
    return (
        None if is_same else f"uses {int(answer['n_features'])} variants instead of {len(wanted)}"
    )


@question(
    verb="gather",
    doing="agreeing on variants",
    asks={"features": "uint8 names"},
    answers={"n_features": "int64, count"},
    remembers=True,
    reads_rows=False,
    check=not_as_asked,
)
def use_variants(site: Site, features: Array) -> dict[str, Any]:
    """Use only the variants in ``features``, in this order, for the rest of the run."""
    own = site.rows.features
    if own is None or not isinstance(site.rows, GenotypeRows):
        raise MessageError("question 'use_variants' needs genotypes, but the site has other rows")
    try:
        wanted = [str(name) for name in json.loads(features.tobytes())]
    except (ValueError, TypeError, RecursionError):
        wanted = []
    position = {name: i for i, name in enumerate(own)}
    if not wanted or len(set(wanted)) < len(wanted) or not set(wanted) <= position.keys():
        raise MessageError(
            "field 'features' of question 'use_variants' must list variants of the site, each once"
        )
    site.choose_variants(np.array([position[name] for name in wanted]))
    return {"n_features": np.int64(len(wanted))}


AGREEING = then(column_names, maybe(use_variants))  # what `common_features` asks


def ask_to_use(fed: Federation, common: CommonFeatures, names: Sequence[str]) -> CommonFeatures:
    """Ask all sites to use only these variants, and return the features that are left."""
    fed.gather(use_variants, features=names_to_bytes(names))
    fed.bind(d=len(names), features=names)
    return replace(common, n_features=len(names), names=tuple(names), in_order=True)


def own_order(site: Site, features: Array) -> Array | None:
    """Return the site's column for each common feature, or None if the order is the same."""
    if misnamed({"features": features, "n_features": np.array(site.rows.n_features)}, {}):
        raise MessageError("field 'features' must list the names of all columns, each once")
    wanted, own = names_from_bytes(features), site.rows.features
    if wanted is None or own is None:
        return None
    order = column_order(wanted, own, "the site")
    return None if order is None else np.array(order)


def names_to_bytes(names: Sequence[str] | None) -> Array:
    """Encode feature names as a message field."""
    return np.frombuffer(b"" if names is None else json.dumps(list(names)).encode(), np.uint8)


def names_from_bytes(array: Array) -> tuple[str, ...] | None:
    """Decode the feature names that `names_to_bytes` encoded."""
    return tuple(str(name) for name in json.loads(array.tobytes())) if array.size else None
