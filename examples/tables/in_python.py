"""Fit components to files with ids, labels, gaps, and columns in any order, from Python.

python examples/tables/make_tables.py FOLDER
python examples/tables/in_python.py FOLDER
"""

import sys
from pathlib import Path

import pandas as pd

from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA, Site, StreamingPCA, Summary

folder = Path(sys.argv[1])

# Tumors at three clinics: the id and the diagnosis are not features, and the mean fills gaps.
clinics = [
    Site(folder / file, name=name, id="patient", drop="diagnosis")
    for name, file in (("north", "north.csv"), ("south", "south.tsv.gz"), ("west", "west.parquet"))
]
pca = FederatedPCA("auto", scale=True, missing="mean", random_state=0)
pca.fit(Federation.local(clinics))
print(
    f"tumors: {pca.n_components_} components, {pca.explained_variance_ratio_.sum():.1%} explained"
)
scores = pca.set_output(transform="pandas").transform(folder / "north.csv")
print(f"tumors: {len(scores)} rows of north scored as {', '.join(scores.columns[:2])}, ...")

# Wines: find what the three cultivars share, and what is specific to each. A column names the site.
wines = pd.read_parquet(folder / "wines.parquet")
shared = PersonalizedPCA(2, 1, scale=True, random_state=0).fit(wines, sites="cultivar")
print(
    f"wines: {shared.explained_variance_ratio_.sum():.1%} of the variance is along 2 shared components"
)

# Diabetes: a few decimal points are in the wrong place.
hospitals = [Site(folder / f"{name}.csv", name=name, id="record") for name in ("east", "center")]
robust = RobustPCA(2, scale=True, random_state=0).fit(Federation.local(hospitals))
print(f"diabetes: outliers {', '.join(f'{k} {v:.1%}' for k, v in robust.sparse_share_.items())}")

# Digits: two archives write summaries, which are merged without a server.
for name in ("archive1", "archive2"):
    file = folder / f"{name}.feather"
    Summary.of(file, 40, drop="label", id="image").save(folder / f"{name}-python.summary")
both = [Summary.load(folder / f"archive{i}-python.summary") for i in (1, 2)]
both_archives = StreamingPCA.from_summary(both[0].merge(both[1]))
print(
    f"digits: {both_archives.n_components_} components of {both_archives.n_samples_seen_:,} images"
)

for name, model in (
    ("tumors", pca),
    ("wines", shared),
    ("diabetes", robust),
    ("digits", both_archives),
):
    model.save(folder / f"{name}-python.fedpca")
