"""Present results as tables, plots, and a page."""

from fedpca.report.diagnostic_displays import (
    ControlChartDisplay,
    SiteMapDisplay,
    StabilityDisplay,
)
from fedpca.report.displays import (
    BiplotDisplay,
    ConvergenceDisplay,
    LoadingsDisplay,
    ScreeDisplay,
    SiteSharesDisplay,
)

__all__ = [
    "BiplotDisplay",
    "ControlChartDisplay",
    "ConvergenceDisplay",
    "LoadingsDisplay",
    "ScreeDisplay",
    "SiteMapDisplay",
    "SiteSharesDisplay",
    "StabilityDisplay",
]
