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

# The names are imported on first use. Importing scikit-learn takes longer than most commands, and a
# site or a server never needs it.
_MODULES = {
    "Federation": "fedpca.coordinator.federation",
    "FedpcaError": "fedpca.errors",
    "Policy": "fedpca.site.policy",
    "Site": "fedpca.site.site",
    "Summary": "fedpca.summary.summary",
    "question": "fedpca.protocol.question",
    **dict.fromkeys(
        ("FederatedPCA", "PersonalizedPCA", "RobustPCA", "StreamingPCA", "load", "search_ranks"),
        "fedpca.estimators",
    ),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    """List the public names, whether or not they have been imported."""
    return sorted({*globals(), *__all__})
