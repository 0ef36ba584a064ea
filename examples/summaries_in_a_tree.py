"""Merge summaries from eight devices in two regions, and compare the model with pooled PCA.

python examples/summaries_in_a_tree.py
"""

import numpy as np
from sklearn.decomposition import PCA

from fedpca import FederatedPCA, StreamingPCA, Summary
from fedpca.linalg.dense import sine_of_angle
from fedpca.solvers import Merge

rng = np.random.default_rng(0)
mixing = rng.normal(size=(6, 80))
devices = [
    rng.normal(size=(200 + 50 * i, 6)) @ mixing + rng.normal(size=(200 + 50 * i, 80)) + i
    for i in range(8)
]

regions = []
for part in (devices[:4], devices[4:]):
    first, *others = (Summary.of(rows, 6) for rows in part)
    regions.append(first.merge(*others))
model = StreamingPCA.from_summary(regions[0].merge(regions[1]))

pooled = PCA(6, svd_solver="full").fit(np.vstack(devices))
angle = sine_of_angle(pooled.components_.T, model.components_.T)
print(f"{model.n_samples_seen_} rows; sine of the angle to pooled PCA: {angle:.1e}")
print(f"stated bound: {model.angle_bound_:.1e}")

# Do the same over a federation, with a ledger of all data sent.
federated = FederatedPCA(6, solver=Merge(fan_in=4)).fit(devices)
print(f"{federated.run_.bytes_up} bytes up in {federated.run_.rounds} rounds")
