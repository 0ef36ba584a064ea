"""Find the topics of each election year.

Each year is a site, and each row holds the word counts of one dialogue.

python examples/topics_by_year.py
python examples/topics_by_year.py --data DIR --figure topics.png      with DIR/debates.parquet
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from fedpca import PersonalizedPCA

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path)
parser.add_argument("--figure", type=Path)
options = parser.parse_args()

if options.data:
    import pyarrow.parquet as pq

    filters = [("type", "in", ["Pres", "VP"])]
    table = pq.read_table(options.data / "debates.parquet", filters=filters)
    texts = table["text"].to_pylist()
    years = table["election_year"].to_numpy().astype(int)
else:  # speeches that share common words and add a few words specific to their year
    rng = np.random.default_rng(0)
    common = ["tax", "people", "country", "world", "money"]
    topics = {1960: "peace africa", 1980: "oil coal", 2004: "war troops", 2020: "virus masks"}
    years = np.repeat(list(topics), 100)
    said = [(rng.poisson(3), rng.poisson(2)) for _ in years]
    texts = [
        " ".join([*rng.choice(common, n), *rng.choice(topics[year].split(), m), "debate"])
        for year, (n, m) in zip(years, said, strict=True)
    ]

counter = CountVectorizer(stop_words="english", min_df=4)
counts = counter.fit_transform(texts).astype(float)  # sparse, and stays sparse
words = counter.get_feature_names_out()
n_local = 2 if options.data else 1
pca = PersonalizedPCA(2, n_local, center="none", tol=1e-7, random_state=0).fit(counts, sites=years)


def leading(components: np.ndarray, n: int = 6) -> np.ndarray:
    """Return the positions of the words with the largest entries in any of the components."""
    return np.argsort(-np.abs(components).max(axis=0))[:n]


print(f"{counts.shape[0]} dialogues, {len(words)} words, {len(pca.local_components_)} years")
print("in all years:", ", ".join(words[leading(pca.components_)]))
for year, components in pca.local_components_.items():
    share = pca.site_variance_[year]["local"]
    print(f"{year} ({share:4.0%} local):", ", ".join(words[leading(components)]))

if options.figure:
    import matplotlib.pyplot as plt

    shown = list(pca.local_components_)[-8:]
    figure, axes = plt.subplots(2, 4, figsize=(9, 4))
    for axis, year in zip(axes.flat, shown, strict=False):
        V = np.abs(pca.local_components_[year]).max(axis=0)
        best = leading(pca.local_components_[year], 8)[::-1]
        axis.barh(words[best], V[best], color="#1f6fb4")
        axis.set_title(year, fontsize=9)
        axis.set_xticks([])
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(options.figure, dpi=90)
