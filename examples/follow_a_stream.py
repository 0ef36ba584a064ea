"""
Follow a stream
===============

Track a stream as its rank changes, adapting the number of components and storing no rows.

``python examples/follow_a_stream.py``; the picture needs ``pip install 'fedpca[plot]'``.
"""

import numpy as np

from fedpca import StreamingPCA

# %%
# For 40 hours, the rows have three directions, and after that, eight. The stream detects the change.

rng = np.random.default_rng(0)
basis = np.linalg.qr(rng.normal(size=(100, 100)))[0]
pca = StreamingPCA(n_components=10, rank="mp")
planted, found = [], []
for rank, hours in ((3, 40), (8, 40)):
    for hour in range(hours):
        signal = rng.normal(size=(50, rank)) * 2 @ basis[:rank]
        pca.partial_fit(signal + 0.1 * rng.normal(size=(50, 100)))
        planted.append(rank)
        found.append(pca.n_components_)
        if hour % 10 == 9:
            share = pca.explained_variance_ratio_.sum()
            print(f"{pca.n_samples_seen_:5d} rows: {pca.n_components_} components, {share:.1%}")

# %%
# The number of components changes by at most one after each batch.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.step(range(1, 81), planted, color="0.6", where="post", label="directions in the rows")
axes.step(range(1, 81), found, color="#1f6fb4", where="post", label="components found")
axes.set(xlabel="hour, with a batch of 50 rows", ylabel="number", ylim=(0, None))
axes.legend(frameon=False)
plt.show()
