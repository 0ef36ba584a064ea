"""Separate gene expression from batch effects, with each batch as a site with its own disturbance.

python examples/batch_effects.py
python examples/batch_effects.py --data DIR --figure batches.png      with DIR/bladderbatch.npz
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

from fedpca import PersonalizedPCA

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path)
parser.add_argument("--figure", type=Path)
options = parser.parse_args()

if options.data:
    with np.load(options.data / "bladderbatch.npz") as file:
        X, batch, kind = file["X"].astype(float), file["batch"], file["cancer"]
else:  # 60 samples: disease and age act alike in all batches; each batch has its own disturbance
    rng = np.random.default_rng(0)
    batch, kind = np.repeat([1, 2, 3, 4], 15), rng.choice(["healthy", "ill"], 60)
    disease, age, *disturbances = rng.normal(size=(6, 2000))
    X = rng.normal(size=(60, 2000)) + 2 * np.outer(kind == "ill", disease)
    X += np.outer(rng.normal(size=60), age)
    X += rng.normal(1, 1, size=(60, 1)) * 2 * np.array(disturbances)[batch - 1]


def told(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return how often three neighbors predict a label correctly, with equal weight for each label."""
    found = cross_val_predict(KNeighborsClassifier(3), scores, labels, cv=LeaveOneOut())
    return float(balanced_accuracy_score(labels, found))


# Use the common mean: if batches hold different kinds of samples, the mean of a batch also depends on
# the kinds of samples in that batch.
pca = PersonalizedPCA(n_shared=2, n_local=1, center="common", tol=1e-7).fit(X, sites=batch)
shared = pca.transform(X, batch)[:, :2]
raw = PCA(2, random_state=0).fit_transform(X)
print(f"{len(X)} samples, {X.shape[1]} genes, {len(np.unique(batch))} batches")
print("accuracy from two scores     batch      kind")
print(f"  PCA on all rows         {told(raw, batch):9.2f} {told(raw, kind):9.2f}")
print(f"  shared components       {told(shared, batch):9.2f} {told(shared, kind):9.2f}")
print(f"  chance                  {1 / len(set(batch)):9.2f} {1 / len(set(kind)):9.2f}")
for name, share in pca.site_variance_.items():
    print(f"  batch {name}: {share['shared']:.0%} shared, {share['local']:.0%} local")

if options.figure:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.6))
    markers = dict(zip(np.unique(kind), "osv", strict=False))
    for axis, scores, title in zip(axes, (raw, shared), ("PCA on all rows", "shared"), strict=True):
        for name, marker in markers.items():
            of = kind == name
            axis.scatter(*scores[of].T, c=batch[of], marker=marker, cmap="tab10", vmin=1, vmax=10)
        axis.set(title=f"{title} (color: batch)", xticks=[], yticks=[])
    for name, marker in markers.items():
        axes[1].scatter([], [], c="gray", marker=marker, label=name)
    axes[1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(options.figure, dpi=90)
