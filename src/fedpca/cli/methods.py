"""Make the estimator for `fedpca fit --kind` from the options that the user typed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from fedpca.cli.options import components_of, solver_of, values_of
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA, PersonalizedPCA, RobustPCA
from fedpca.privacy.gaussian import Privacy
from fedpca.solvers.catalogue import find_solver


class Kind(StrEnum):
    """The kinds of components that `fedpca fit` finds, each with an estimator of its own."""

    pca = "pca"
    personalized = "personalized"
    robust = "robust"


class Parameters(NamedTuple):
    """How the options for one kind of components become the parameters of its estimator."""

    estimator: type[Any]
    of_options: Mapping[str, str]  # the parameter that each of the kind's own options sets


KINDS = {
    Kind.pca: Parameters(
        FederatedPCA,
        {"-k": "n_components", "--missing": "missing", "--maf": "maf", "--binomial": "scale"},
    ),
    Kind.personalized: Parameters(
        PersonalizedPCA, {"--shared": "n_shared", "--local": "n_local", "--gather": "gather"}
    ),
    Kind.robust: Parameters(
        RobustPCA, {"-k": "n_components", "--max-components": "max_components"}
    ),
}
PRIVACY = {  # the field of `Privacy` that each option sets
    "--epsilon": "epsilon",
    "--delta": "delta",
    "--row-bound": "row_bound",
    "--around": "around",
    "--silent": "n_silent",
}
OTHER_OPTIONS = {  # for options that set no parameter by themselves: the kind they apply to
    "--local-models": Kind.personalized,
    "--outliers": Kind.robust,
    "--weight": Kind.pca,
    **dict.fromkeys(PRIVACY, Kind.pca),
}


def estimator_of(
    kind: Kind,
    own: Mapping[str, Any],
    *,
    solver: str | None,
    solver_options: list[str],
    more: list[str],
    common: Mapping[str, Any],
) -> Any:
    """Return the unfitted estimator, or refuse options that do not suit the kind.

    ``own`` has the value of each option that only some kinds have, or None if the user did not type
    the option. ``common`` has the values of parameters that all kinds have. ``more`` lists further
    parameters as NAME=VALUE.
    """
    make, of_options = KINDS[kind]
    typed = {option: value for option, value in own.items() if value is not None}
    for option in typed:
        if option not in of_options and OTHER_OPTIONS.get(option) is not kind:
            allowed = ", ".join(of_options)
            raise InputError(
                f"{option} does not apply to --kind {kind}, whose own options are {allowed}; omit it"
            )
    _require(kind, typed)
    privacy = privacy_of(typed)
    parameters = {name: value for name, value in common.items() if value is not None}
    parameters |= {of_options[o]: value for o, value in typed.items() if o in of_options}
    if privacy is not None:
        parameters["privacy"] = privacy
    if solver is not None or solver_options:
        find = partial(find_solver, program=make.__name__)
        default = make(**parameters).solver
        parameters["solver"] = solver_of(solver or default, solver_options, find)
    given = values_of("--parameter", more, "center=none")
    unknown = [name for name in given if name not in make(**parameters).get_params()]
    if unknown:
        names = ", ".join(make(**parameters).get_params())
        raise InputError(
            f"--kind {kind} has no parameter {', '.join(unknown)}; its parameters are {names}"
        )
    return make(**{**parameters, **given})


def privacy_of(typed: Mapping[str, Any]) -> Privacy | None:
    """Return the promise of differential privacy that the user asked for, or None."""
    given = {setting: typed[o] for o, setting in PRIVACY.items() if o in typed}
    if not given:
        return None
    needed = [option for option in ("--epsilon", "--delta", "--row-bound") if option not in typed]
    if needed:
        first = next(option for option in PRIVACY if option in typed)
        raise InputError(
            f"{first} also needs {' and '.join(needed)}, as in --epsilon 1 --delta 1e-6 --row-bound 8; "
            "rows farther than --row-bound from the mean are moved to that distance"
        )
    return Privacy(**given)


def around_of(text: str | None) -> float | tuple[float, ...] | None:
    """Parse --around: one number for all features, or a number for each, as in 0.5,1,2."""
    if text is None:
        return None
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--around {text} must be a number, or a number for each feature, as in 0.5,1,2"
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]


def components_typed(kind: Kind, text: str | None) -> Any:
    """Parse -k; without -k, pca finds the number of components, and other kinds get None."""
    if text is None:
        return "auto" if kind is Kind.pca else None
    return components_of(text)


def local_ranks_of(text: str | None) -> int | dict[str, int] | None:
    """Parse --local: one number for all sites, or a number for each, as in north=2,south=1."""
    if text is None:
        return None
    try:
        if "=" not in text:
            return int(text)
        pairs = (part.rpartition("=") for part in text.split(","))
        return {name.strip(): int(number) for name, _, number in pairs}
    except ValueError:
        raise InputError(
            f"--local {text} must be a number, or a number for each site, as in north=2,south=1"
        ) from None


def _require(kind: Kind, typed: Mapping[str, Any]) -> None:
    """Refuse options that do not determine the numbers of components."""
    if kind is Kind.personalized and not {"--shared", "--local"} <= typed.keys():
        raise InputError(
            "--kind personalized requires the numbers of shared and local components, as in "
            "--shared 2 --local 1"
        )
    if kind is Kind.robust and ("-k" in typed) == ("--max-components" in typed):
        raise InputError(
            "--kind robust requires either -k with the number of components, or "
            "--max-components with a bound on that number"
        )
