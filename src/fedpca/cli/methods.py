"""Make the estimator for `fedpca fit --method` from the options that the user typed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from fedpca.cli.options import components_of, solver_of, values_of
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA, PersonalizedPCA, RobustPCA
from fedpca.privacy.gaussian import Privacy
from fedpca.solvers.catalogue import find_personalized, find_robust, find_solver


class Method(StrEnum):
    """The methods of `fedpca fit`, which find different kinds of components."""

    pca = "pca"
    personalized = "personalized"
    robust = "robust"


class Kind(NamedTuple):
    """How a method's options become the parameters of its estimator."""

    make: Callable[..., Any]
    parameters: Mapping[str, str]  # the parameter that each of the method's own options sets
    solver: str  # the parameter that takes the solver
    find: Callable[[str], Any]  # returns a solver for its name


KINDS = {
    Method.pca: Kind(
        FederatedPCA,
        {"-k": "n_components", "--missing": "missing", "--maf": "maf", "--binomial": "scale"},
        "solver",
        find_solver,
    ),
    Method.personalized: Kind(
        PersonalizedPCA,
        {"--shared": "n_shared", "--local": "n_local", "--gather": "gather"},
        "method",
        find_personalized,
    ),
    Method.robust: Kind(
        RobustPCA,
        {"-k": "n_components", "--max-components": "max_components"},
        "method",
        find_robust,
    ),
}
PRIVACY = {  # the field of `Privacy` that each option sets
    "--epsilon": "epsilon",
    "--delta": "delta",
    "--row-bound": "row_bound",
    "--around": "around",
    "--silent": "n_silent",
}
OTHER_OPTIONS = {  # for options that set no parameter by themselves: the method they apply to
    "--local-models": Method.personalized,
    "--outliers": Method.robust,
    "--weight": Method.pca,
    **dict.fromkeys(PRIVACY, Method.pca),
}


def estimator_of(
    method: Method,
    own: Mapping[str, Any],
    *,
    solver: str | None,
    solver_options: list[str],
    more: list[str],
    common: Mapping[str, Any],
) -> Any:
    """Return the unfitted estimator, or refuse options that do not suit the method.

    ``own`` has the value of each option that only some methods have, or None if the user did not type
    the option. ``common`` has the values of parameters that all methods have. ``more`` lists further
    parameters as NAME=VALUE.
    """
    kind = KINDS[method]
    typed = {option: value for option, value in own.items() if value is not None}
    for option in typed:
        if option not in kind.parameters and OTHER_OPTIONS.get(option) is not method:
            allowed = ", ".join(kind.parameters)
            raise InputError(
                f"{option} does not apply to --method {method}, whose own options are {allowed}; "
                "omit it"
            )
    _require(method, typed)
    privacy = privacy_of(typed)
    parameters = {name: value for name, value in common.items() if value is not None}
    parameters |= {kind.parameters[o]: value for o, value in typed.items() if o in kind.parameters}
    if privacy is not None:
        parameters["privacy"] = privacy
    if solver is not None or solver_options:
        default = getattr(kind.make(**parameters), kind.solver)
        parameters[kind.solver] = solver_of(solver or default, solver_options, kind.find)
    given = values_of("--parameter", more, "center=none")
    unknown = [name for name in given if name not in kind.make(**parameters).get_params()]
    if unknown:
        names = ", ".join(kind.make(**parameters).get_params())
        raise InputError(
            f"--method {method} has no parameter {', '.join(unknown)}; its parameters are {names}"
        )
    return kind.make(**{**parameters, **given})


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


def components_typed(method: Method, text: str | None) -> Any:
    """Parse -k; without -k, method pca finds the number of components, and other methods get None."""
    if text is None:
        return "auto" if method is Method.pca else None
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


def _require(method: Method, typed: Mapping[str, Any]) -> None:
    """Refuse options that do not determine the numbers of components."""
    if method is Method.personalized and not {"--shared", "--local"} <= typed.keys():
        raise InputError(
            "--method personalized requires the numbers of shared and local components, as in "
            "--shared 2 --local 1"
        )
    if method is Method.robust and ("-k" in typed) == ("--max-components" in typed):
        raise InputError(
            "--method robust requires either -k with the number of components, or "
            "--max-components with a bound on that number"
        )
