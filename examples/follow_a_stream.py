"""Track a stream as its rank changes, adapting the number of components and storing no rows.

python examples/follow_a_stream.py
"""

import numpy as np

from fedpca import StreamingPCA

rng = np.random.default_rng(0)
basis = np.linalg.qr(rng.normal(size=(100, 100)))[0]
pca = StreamingPCA(n_components=10, rank="mp")
for rank, hours in ((3, 40), (8, 40)):
    for hour in range(hours):
        signal = rng.normal(size=(50, rank)) * 2 @ basis[:rank]
        pca.partial_fit(signal + 0.1 * rng.normal(size=(50, 100)))
        if hour % 10 == 9:
            share = pca.explained_variance_ratio_.sum()
            print(f"{pca.n_samples_seen_:5d} rows: {pca.n_components_} components, {share:.1%}")
