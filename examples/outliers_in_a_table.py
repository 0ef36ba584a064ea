"""
Outliers in a table
===================

Find outlier cells planted in a table split across three sites, and fill in missing values.

``python examples/outliers_in_a_table.py``; the picture needs ``pip install 'fedpca[plot]'``.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer

from fedpca import RobustPCA

# %%
# In one cell in a hundred, the decimal point is one place too far to the left or right. About as many
# cells are missing.

data = load_breast_cancer()  # 569 tumors: lengths, areas, and ratios, in different units
is_positive = (data.data > 0).all(axis=0)
truth, names = data.data[:, is_positive], data.feature_names[is_positive]
rng = np.random.default_rng(0)

is_planted = rng.random(truth.shape) < 0.01
typed = np.where(is_planted, truth * rng.choice([0.1, 10], truth.shape), truth)
is_missing = (rng.random(truth.shape) < 0.01) & ~is_planted
typed[is_missing] = np.nan

# %%
# The logarithm turns a wrong factor into an added error, and also shortens the tails of the features.

X = np.log(typed)
sites = dict(zip(("north", "south", "west"), np.array_split(X, 3), strict=True))
pca = RobustPCA(6, scale=True, random_state=0).fit(sites)
print(f"{is_planted.sum()} cells planted; {pca.run_.rounds} rounds, {pca.run_.stop_reason}")
print("outliers:", {site: f"{share:.1%}" for site, share in pca.sparse_share_.items()})

# %%
# In real tables, many cells score above 1 because they do not follow the components, so start with the
# largest scores.

cells = pca.outlier_scores(X).cells
print("\nscore above   cells   precision   recall")
for bound in (1, 2, 4, 8):
    found = cells > bound
    both = (found & is_planted).sum()
    print(f"{bound:11d} {found.sum():7d} {both / found.sum():11.0%} {both / is_planted.sum():8.0%}")

print("\nthe five largest outliers")
low_rank = np.exp(pca.split(X).low_rank)
for place in np.argsort(cells, axis=None)[-1:-6:-1]:
    i, j = np.unravel_index(place, cells.shape)
    print(f"  row {i}, {names[j]}: {typed[i, j]:.3g}, expected {low_rank[i, j]:.3g}")

# %%
# The components fill in each missing value from the rest of its row.

off = np.median(np.abs(low_rank / truth - 1)[is_missing])
plain = np.median(np.abs(np.nanmedian(typed, axis=0) / truth - 1)[is_missing])
print(f"\n{is_missing.sum()} missing values filled in with a median error of {off:.0%};", end="")
print(f" the feature medians would give {plain:.0%}")

# %%
# Planted cells score far higher than most others.

import matplotlib.pyplot as plt

bins = np.geomspace(0.01, 40, 60)
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
known = ~is_planted & ~is_missing
axes.hist(cells[known], bins, color="0.7", label="cells as measured")
axes.hist(cells[is_planted], bins, color="#b4501f", label="planted cells")
axes.axvline(1, color="black", linewidth=0.8, linestyle="--", label="threshold")
axes.set(xscale="log", yscale="log", xlabel="score", ylabel="cells")
axes.legend(frameon=False)
plt.show()
