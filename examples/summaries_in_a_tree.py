"""
Summaries in a tree
===================

Merge summaries from eight devices in two regions, and compare the model with pooled PCA.

``python examples/summaries_in_a_tree.py``; the picture needs ``pip install 'fedpca[plot]'``.
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

# %%
# Each device reads its rows once and sends a summary. Each region merges its devices' summaries, and
# the regions' summaries are merged into a model. ``Summary.save`` and ``Summary.load`` write and read
# files, for processes that cannot talk to each other.

regions = []
for part in (devices[:4], devices[4:]):
    first, *others = (Summary.of(rows, 6) for rows in part)
    regions.append(first.merge(*others))
model = StreamingPCA.from_summary(regions[0].merge(regions[1]))

# %%
# The model states a bound on its angle to pooled PCA. The actual angle is usually far smaller.

pooled = PCA(6, svd_solver="full").fit(np.vstack(devices))
angle = sine_of_angle(pooled.components_.T, model.components_.T)
print(f"{model.n_samples_seen_} rows; sine of the angle to pooled PCA: {angle:.1e}")
print(f"stated bound: {model.angle_bound_:.1e}")

# %%
# Do the same in a federation, which keeps a ledger of all data sent.

federated = FederatedPCA(6, solver=Merge(fan_in=4)).fit(devices)
print(f"{federated.run_.bytes_up} bytes up in {federated.run_.rounds} rounds")

# %%
# Spare directions, which a summary carries beyond those wanted, make both the angle and the bound
# smaller.

import matplotlib.pyplot as plt

spares, angles, bounds = (1, 5, 10, 20, 40), [], []
for n_spare in spares:
    first, *others = (Summary.of(rows, 6, n_spare=n_spare) for rows in devices)
    merged = StreamingPCA.from_summary(first.merge(*others), n_components=6)
    angles.append(sine_of_angle(pooled.components_.T, merged.components_.T))
    bounds.append(merged.angle_bound_)

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.semilogy(spares, bounds, "s--", color="#b4501f", label="stated bound")
axes.semilogy(spares, angles, "o-", color="#1f6fb4", label="actual")
axes.set(xlabel="spare directions", ylabel="sine of the angle")
axes.legend(frameon=False)
plt.show()
