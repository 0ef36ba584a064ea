"""Present results as tables, plots, and pages."""

from fedpca.report.biplot import BiplotDisplay
from fedpca.report.diagnostic_displays import (
    ControlChartDisplay,
    SiteMapDisplay,
    StabilityDisplay,
)
from fedpca.report.displays import (
    ConvergenceDisplay,
    LoadingsDisplay,
    ScreeDisplay,
    SiteSharesDisplay,
)
from fedpca.report.parts import PartsDisplay
from fedpca.report.privacy_displays import LeakDisplay, UtilityDisplay

__all__ = [
    "BiplotDisplay",
    "ControlChartDisplay",
    "ConvergenceDisplay",
    "LeakDisplay",
    "LoadingsDisplay",
    "PartsDisplay",
    "ScreeDisplay",
    "SiteMapDisplay",
    "SiteSharesDisplay",
    "StabilityDisplay",
    "UtilityDisplay",
]
