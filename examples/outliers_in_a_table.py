"""Find outlier cells planted in a table of three sites, and fill in missing values.

python examples/outliers_in_a_table.py
"""

import numpy as np
from sklearn.datasets import load_breast_cancer

from fedpca import RobustPCA

data = load_breast_cancer()  # 569 tumors: lengths, areas, shares, in unlike units
is_positive = (data.data > 0).all(axis=0)
truth, names = data.data[:, is_positive], data.feature_names[is_positive]
rng = np.random.default_rng(0)

# one cell in a hundred is typed with the decimal point a place too far left or right ...
is_planted = rng.random(truth.shape) < 0.01
typed = np.where(is_planted, truth * rng.choice([0.1, 10], truth.shape), truth)
# ... and as many are missing
is_missing = (rng.random(truth.shape) < 0.01) & ~is_planted
typed[is_missing] = np.nan

# a wrong factor is a wrong summand of the logarithm, whose tails are shorter besides
X = np.log(typed)
sites = dict(zip(("north", "south", "west"), np.array_split(X, 3), strict=True))
pca = RobustPCA(6, scale=True, random_state=0).fit(sites)
print(f"{is_planted.sum()} cells planted; {pca.run_.rounds} rounds, {pca.run_.stop_reason}")
print("outliers:", {site: f"{share:.1%}" for site, share in pca.sparse_share_.items()})

# real tables hold many cells beyond 1 that do not follow the components: begin with the largest
cells = pca.outlier_scores(X).cells
print("\nscore above   cells   precision   recall")
for bound in (1, 2, 4, 8):
    found = cells > bound
    both = (found & is_planted).sum()
    print(f"{bound:11d} {found.sum():7d} {both / found.sum():11.0%} {both / is_planted.sum():8.0%}")

print("\nthe five furthest out")
low_rank = np.exp(pca.split(X).low_rank)
for place in np.argsort(cells, axis=None)[-1:-6:-1]:
    i, j = np.unravel_index(place, cells.shape)
    print(f"  row {i}, {names[j]}: {typed[i, j]:.3g}, expected {low_rank[i, j]:.3g}")

off = np.median(np.abs(low_rank / truth - 1)[is_missing])
plain = np.median(np.abs(np.nanmedian(typed, axis=0) / truth - 1)[is_missing])
print(f"\n{is_missing.sum()} missing values are filled in to {off:.0%} (median error);", end="")
print(f" medians of the features would give {plain:.0%}")
