"""Principal components of data that stays where it is."""

from fedpca._version import __version__
from fedpca.errors import FedpcaError
from fedpca.estimators import (
    FederatedPCA,
    PersonalizedPCA,
    RobustPCA,
    StreamingPCA,
    load,
    search_ranks,
)
from fedpca.federation import Federation
from fedpca.policy import Policy
from fedpca.question import question
from fedpca.site import Site
from fedpca.summary import Summary

__all__ = [
    "FederatedPCA",
    "Federation",
    "FedpcaError",
    "PersonalizedPCA",
    "Policy",
    "RobustPCA",
    "Site",
    "StreamingPCA",
    "Summary",
    "__version__",
    "load",
    "question",
    "search_ranks",
]
