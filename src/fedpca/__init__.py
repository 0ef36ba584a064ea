"""Find principal components of data that stays where it is."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedpca._version import __version__

if TYPE_CHECKING:
    from fedpca.coordinator.federation import Federation
    from fedpca.errors import FedpcaError
    from fedpca.estimators import (
        FederatedPCA,
        PersonalizedPCA,
        RobustPCA,
        StreamingPCA,
        diagnose,
        load,
        search_ranks,
        to_anndata,
        verify,
    )
    from fedpca.privacy.gaussian import Privacy
    from fedpca.protocol.question import question
    from fedpca.rows.genotypes.plink_files import Genotypes
    from fedpca.site.policy import Policy
    from fedpca.site.site import Site
    from fedpca.solvers.planning.plan import plan
    from fedpca.summary.summary import Summary

__all__ = [
    "FederatedPCA",
    "Federation",
    "FedpcaError",
    "Genotypes",
    "PersonalizedPCA",
    "Policy",
    "Privacy",
    "RobustPCA",
    "Site",
    "StreamingPCA",
    "Summary",
    "__version__",
    "diagnose",
    "load",
    "plan",
    "question",
    "search_ranks",
    "to_anndata",
    "verify",
]


# where the names come from that are not in `fedpca.estimators`
_HOMES = {
    "Federation": "coordinator.federation",
    "FedpcaError": "errors",
    "Genotypes": "rows.genotypes.plink_files",
    "Policy": "site.policy",
    "Privacy": "privacy.gaussian",
    "Site": "site.site",
    "Summary": "summary.summary",
    "plan": "solvers.planning.plan",
    "question": "protocol.question",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Estimators need scikit-learn, and the rest needs SciPy. Importing these takes longer than most
    commands take to run. Sites and servers do not need scikit-learn, and help texts need neither.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"fedpca.{_HOMES.get(name, 'estimators')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    """List the public names, whether or not they have been imported."""
    return sorted({*globals(), *__all__})
