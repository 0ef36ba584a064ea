"""Find principal components of data that stays where it is."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import fedpca.solvers  # noqa: F401 - registers the questions that a site may be asked
from fedpca._version import __version__
from fedpca.coordinator.federation import Federation
from fedpca.errors import FedpcaError
from fedpca.privacy.gaussian import Privacy
from fedpca.protocol.question import question
from fedpca.rows.genotypes.plink_files import Genotypes
from fedpca.site.policy import Policy
from fedpca.site.site import Site
from fedpca.solvers.planning.plan import plan
from fedpca.summary.summary import Summary

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """Import the estimators when they are first used.

    They need scikit-learn, which takes longer to import than most commands take to run. Sites and
    servers do not need scikit-learn.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("fedpca.estimators"), name)
    return value


def __dir__() -> list[str]:
    """List the public names, whether or not they have been imported."""
    return sorted({*globals(), *__all__})
