"""Principal components of data that stays where it is."""

from fedpca._version import __version__
from fedpca.errors import FedpcaError
from fedpca.estimators import FederatedPCA, load
from fedpca.federation import Federation
from fedpca.question import question
from fedpca.site import Policy, Site

__all__ = [
    "FederatedPCA",
    "Federation",
    "FedpcaError",
    "Policy",
    "Site",
    "__version__",
    "load",
    "question",
]
