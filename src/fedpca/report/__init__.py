"""Present results as tables, plots, and a page."""

from fedpca.report.displays import (
    BiplotDisplay,
    ConvergenceDisplay,
    LoadingsDisplay,
    ScreeDisplay,
    SiteSharesDisplay,
)

__all__ = [
    "BiplotDisplay",
    "ConvergenceDisplay",
    "LoadingsDisplay",
    "ScreeDisplay",
    "SiteSharesDisplay",
]
