"""Find principal components of data that stays where it is."""

from fedpca._version import __version__
from fedpca.coordinator.federation import Federation
from fedpca.errors import FedpcaError
from fedpca.estimators import (
    FederatedPCA,
    PersonalizedPCA,
    RobustPCA,
    StreamingPCA,
    load,
    search_ranks,
)
from fedpca.protocol.question import question
from fedpca.site.policy import Policy
from fedpca.site.site import Site
from fedpca.summary.summary import Summary

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
