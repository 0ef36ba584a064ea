"""Kill a fit partway through, and resume it from its journal.

python examples/resume_after_a_crash.py
"""

import tempfile
from pathlib import Path

import numpy as np

from fedpca import FederatedPCA, Federation

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
for name in ("north", "south"):
    np.save(folder / f"{name}.npy", rng.standard_normal((500, 300)) * np.geomspace(3, 1, 300))
files = {name: folder / f"{name}.npy" for name in ("north", "south")}


class PowerCut(BaseException):
    """Simulate any event that kills a process."""


def cut_the_power(entry: dict) -> None:
    if entry["round"] == 7:
        raise PowerCut


def fit(**options: object) -> FederatedPCA:
    fed = Federation.local(files, journal=folder / "run.journal", **options)
    return FederatedPCA(5, solver="lanczos").fit(fed)


try:
    fit(on_round=cut_the_power)
except PowerCut:
    print("the power went out after round 7")

asked = []
model = fit(on_round=lambda entry: asked.append(entry["seconds"]))
print(f"resumed and finished: {model.run_.rounds} rounds, {model.run_.stop_reason}")
