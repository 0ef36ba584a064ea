"""Options that say what is fitted and how, and the estimators that they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar

import typer

from fedpca.cli.option_groups import flags_of, given_options, option
from fedpca.cli.options import components_of, solver_of, values_of
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA, PersonalizedPCA, RobustPCA
from fedpca.linalg.rank_rules import RULES
from fedpca.privacy.gaussian import Privacy
from fedpca.rows.gaps import MISSING
from fedpca.solvers.catalogue import AUTO, PERSONALIZED, ROBUST, SOLVERS, find_solver
from fedpca.solvers.standardize import BINOMIAL


class Kind(StrEnum):
    """The kinds of components that `fedpca fit` finds, each with an estimator of its own."""

    pca = "pca"
    personalized = "personalized"
    robust = "robust"


ESTIMATORS: Mapping[Kind, Any] = {
    Kind.pca: FederatedPCA,
    Kind.personalized: PersonalizedPCA,
    Kind.robust: RobustPCA,
}
OF_KIND = {
    Kind.pca: [AUTO, *SOLVERS],
    Kind.personalized: list(PERSONALIZED),
    Kind.robust: list(ROBUST),
}
PERSONALIZED_PANEL = "Options of --kind personalized"
ROBUST_PANEL = "Options of --kind robust"
GENOTYPES_PANEL = "Options for genotypes"
PLAIN, LOW_RANK = FederatedPCA(), RobustPCA()  # the help texts show their defaults


def local_ranks_of(text: str) -> int | dict[str, int]:
    """Parse --local: one number for all sites, or a number for each, as in north=2,south=1."""
    try:
        if "=" not in text:
            return int(text)
        pairs = (part.rpartition("=") for part in text.split(","))
        return {name.strip(): int(number) for name, _, number in pairs}
    except ValueError:
        raise InputError(
            f"--local {text} must be a number, or a number for each site, as in north=2,south=1"
        ) from None


def names_of_solvers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the solvers that a shell may suggest, given the kind if it was typed before."""
    names = OF_KIND[Kind(ctx.params.get("kind") or Kind.pca)]
    return [name for name in names if name.startswith(incomplete)]


def names_of_rules(incomplete: str) -> list[str]:
    """Return the words for a number of components that a shell may suggest."""
    return [name for name in (*RULES, "all") if name.startswith(incomplete)]


def ways_with_gaps(incomplete: str) -> list[str]:
    """Return the values of --missing that a shell may suggest."""
    return [name for name in MISSING if name.startswith(incomplete)]


def _sets(parameter: str, *kinds: Kind) -> dict[str, Any]:
    """Return which parameter an option sets, and for which kinds of components."""
    return {"parameter": parameter, "kinds": kinds or tuple(Kind)}


@dataclass(frozen=True)
class Method:
    """What is fitted, and how.

    Each option whose metadata has "parameter" sets this parameter of the estimator, if the components
    are of one of its "kinds"; "parse" returns the parameter's value for what was typed.
    """

    panel: ClassVar[str] = "What is fitted, and how"

    kind: Kind = option(
        Kind.pca,
        "pca: components of the pooled rows. personalized: components that all sites share, and local "
        "ones for each site. robust: components despite outliers and missing values.",
        Kind,
    )
    n_components: str | None = option(
        None,
        "Number of components, share of the variance (0.95 or 95%), auto (the default), mp, gap, or "
        "all. A robust fit takes a number.",
        str | None,
        "-k",
        "--components",
        parse=components_of,
        complete=names_of_rules,
        **_sets("n_components", Kind.pca, Kind.robust),
    )
    shared: int | None = option(
        None,
        "Number of components that all sites share.",
        int | None,
        panel=PERSONALIZED_PANEL,
        **_sets("n_shared", Kind.personalized),
    )
    local: str | None = option(
        None,
        "Number of local components at each site, or NAME=NUMBER,... for every site.",
        str | None,
        panel=PERSONALIZED_PANEL,
        parse=local_ranks_of,
        **_sets("n_local", Kind.personalized),
    )
    gather: bool = option(
        False,
        "With --federation, ask the sites for their local components.",
        bool,
        "--gather",
        panel=PERSONALIZED_PANEL,
        **_sets("gather", Kind.personalized),
    )
    max_components: int | None = option(
        None,
        "Upper bound on the number of components, to use instead of -k.",
        int | None,
        panel=ROBUST_PANEL,
        **_sets("max_components", Kind.robust),
    )
    solver: str | None = option(
        None,
        f"Solver. pca: {', '.join(OF_KIND[Kind.pca])}, or one from an installed package. personalized: "
        f"{', '.join(PERSONALIZED)}. robust: {', '.join(ROBUST)}.",
        str | None,
        complete=names_of_solvers,
    )
    solver_option: list[str] = option(
        [], "Solver option as NAME=VALUE; may be repeated.", list[str], "--option"
    )
    parameter: list[str] = option(
        [], "Other parameter of the estimator, such as center=none; may be repeated.", list[str]
    )
    scale: bool = option(
        False,
        "Divide each feature by its standard deviation.",
        bool,
        "--scale",
        **_sets("scale"),
    )
    binomial: bool = option(
        False,
        "Divide each variant by sqrt(2p(1-p)), as plink2 does; p is the allele's frequency over all "
        "sites.",
        bool,
        "--binomial",
        panel=GENOTYPES_PANEL,
        parse=lambda _: BINOMIAL,
        **_sets("scale", Kind.pca),
    )
    maf: float | None = option(
        None,
        "Leave out variants whose rarer allele is less frequent than this over all sites.",
        float | None,
        panel=GENOTYPES_PANEL,
        **_sets("maf", Kind.pca),
    )
    missing: str | None = option(
        None,
        "What to do with missing values: error (the default) refuses them, mean replaces them with the "
        "feature's mean, and drop leaves out the rows that contain any.",
        str | None,
        complete=ways_with_gaps,
        **_sets("missing", Kind.pca),
    )
    tol: float | None = option(
        None,
        f"Stop when the residual is this small; by default, {PLAIN.tol:g}, or {LOW_RANK.tol:g} with "
        "robust.",
        float | None,
        **_sets("tol"),
    )
    max_rounds: int | None = option(
        None,
        f"Stop the solver after this many rounds; by default, {PLAIN.max_rounds}, or "
        f"{LOW_RANK.max_rounds} with robust.",
        int | None,
        **_sets("max_rounds"),
    )
    seed: int | None = option(
        None, "Seed for the random start.", int | None, **_sets("random_state")
    )

    @property
    def components(self) -> Any:
        """Return what -k asks for: a number, a share, the name of a rule, or None for all."""
        return "auto" if self.n_components is None else components_of(self.n_components)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that were typed; refuse options that suit a different kind."""
        refuse_other_kinds(self.kind, self)
        found = {}
        for each, value in given_options(self).values():
            if "parameter" in each.metadata:
                parse = each.metadata.get("parse")
                found[each.metadata["parameter"]] = value if parse is None else parse(value)
        given = values_of("--parameter", self.parameter, "center=none")
        known = ESTIMATORS[self.kind]._get_param_names()
        unknown = [name for name in given if name not in known]
        if unknown:
            raise InputError(
                f"--kind {self.kind} has no parameter {', '.join(unknown)}; its parameters are "
                f"{', '.join(known)}"
            )
        return found | given

    def estimator(self, noise: Noise | None = None) -> Any:
        """Return the unfitted estimator; refuse options that do not determine its components."""
        make, found = ESTIMATORS[self.kind], self.parameters()
        typed = given_options(self)
        if self.kind is Kind.pca and "-k" not in typed:
            found = {"n_components": "auto", **found}
        if self.kind is Kind.personalized and not {"--shared", "--local"} <= typed.keys():
            raise InputError(
                "--kind personalized requires the numbers of shared and local components, as in "
                "--shared 2 --local 1"
            )
        if self.kind is Kind.robust and ("-k" in typed) == ("--max-components" in typed):
            raise InputError(
                "--kind robust requires either -k with the number of components, or "
                "--max-components with a bound on that number"
            )
        if noise is not None:
            refuse_other_kinds(self.kind, noise)
            if noise.promise() is not None:
                found["privacy"] = noise.promise()
        if self.solver is not None or self.solver_option:
            find = partial(find_solver, program=make.__name__)
            found["solver"] = solver_of(
                self.solver or make(**found).solver, self.solver_option, find
            )
        return make(**found)


@dataclass(frozen=True)
class Noise:
    """The promise of differential privacy, if any."""

    panel: ClassVar[str] = "Differential privacy"
    of_pca: ClassVar[Mapping[str, Any]] = {"kinds": (Kind.pca,)}

    epsilon: float | None = option(
        None,
        "Add noise, so that the fit is differentially private for each row. Requires --delta and "
        "--row-bound. With several sites, this also turns on secure sums, which let the sites share "
        "the noise.",
        float | None,
        **of_pca,
    )
    delta: float | None = option(
        None,
        "Probability that the promise of --epsilon fails; choose it far below one over the number of "
        "rows.",
        float | None,
        **of_pca,
    )
    row_bound: float | None = option(
        None,
        "Largest distance from the mean; rows farther away are moved to this distance. Choose it from "
        "domain knowledge, not by looking at the rows.",
        float | None,
        **of_pca,
    )
    around: str | None = option(
        None,
        "Point near which rows are expected: one number, or one for each feature; by default, 0.",
        str | None,
        **of_pca,
    )
    n_silent: int | None = option(
        None,
        "Number of sites that may fail to add their noise; by default, 1.",
        int | None,
        "--silent",
        **of_pca,
    )
    n_products: int | None = option(
        None,
        "Number of noisy products in a fit to a table that has too many features to sum its scatter; "
        f"by default, {Privacy.n_products}.",
        int | None,
        "--products",
        **of_pca,
    )

    def promise(self) -> Privacy | None:
        """Return the promise that was asked for, or None; refuse a part of one."""
        typed = given_options(self)
        if not typed:
            return None
        needed = [flag for flag in ("--epsilon", "--delta", "--row-bound") if flag not in typed]
        if needed:
            raise InputError(
                f"{next(iter(typed))} also needs {' and '.join(needed)}, as in --epsilon 1 --delta "
                "1e-6 --row-bound 8; rows farther than --row-bound from the mean are moved to that "
                "distance"
            )
        given = {each.name: value for each, value in typed.values()}
        return Privacy(**given | ({"around": around_of(self.around)} if self.around else {}))


NO_METHOD, NO_NOISE = Method(), Noise()


def around_of(text: str) -> float | tuple[float, ...]:
    """Parse --around: one number for all features, or a number for each, as in 0.5,1,2."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--around {text} must be a number, or a number for each feature, as in 0.5,1,2"
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]


def refuse_other_kinds(kind: Kind, group: Any) -> None:
    """Refuse the options in a group that do not apply to a kind of components."""
    for flag, (each, _) in given_options(group).items():
        if kind not in each.metadata.get("kinds", (kind,)):
            own = [name for name, of in KINDS_OF.items() if kind in of and len(of) < len(Kind)]
            raise InputError(
                f"{flag} does not apply to --kind {kind}, whose own options are {', '.join(own)}; "
                "omit it"
            )


# the kinds of components to which each option of a method applies
KINDS_OF = {
    flag: each.metadata["kinds"]
    for flag, each in flags_of(Method).items()
    if "kinds" in each.metadata
}
