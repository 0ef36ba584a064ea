"""
Four clinics
============

Find the components of patient data at four clinics; no patient's row leaves its clinic.

``python examples/four_clinics.py``; the picture needs ``pip install 'fedpca[plot]'``.
"""

import numpy as np
import pyarrow as pa
from sklearn.datasets import load_breast_cancer

from fedpca import FederatedPCA

# %%
# Assign patients to clinics by tumor size, and give each clinic a different column order. However
# different the sites are, the result is that of the pooled rows.

data = load_breast_cancer()
by_size = np.argsort(data.data[:, 0], kind="stable")
clinics = zip(("north", "east", "south", "west"), np.split(by_size, [60, 200, 420]), strict=True)
tables = {}
for i, (clinic, patients) in enumerate(clinics):
    order = np.roll(np.arange(30), i)
    tables[clinic] = pa.table({data.feature_names[j]: data.data[patients, j] for j in order})

# %%
# Fit, and print what was found and what left the clinics.

model = FederatedPCA(n_components=3, scale=True).fit(tables)

print(f"{model.n_samples_} patients at {len(model.run_.sites)} clinics")
print("explained variance ratio:", model.explained_variance_ratio_.round(3))
for clinic, share in model.site_variance_ratio_.items():
    print(f"  {clinic}: {share:.0%} of its own variance explained")
print(f"{model.run_.rounds} rounds, {model.run_.bytes_up} bytes left the clinics:")
for entry in model.run_.ledger.totals():
    if entry.direction == "up":
        print(f"  {entry.question}.{entry.field}: {entry.bytes} bytes, {entry.how}")

# %%
# Draw how much each component explains, and at which clinics the components describe the patients
# least.

import matplotlib.pyplot as plt

from fedpca.report import ScreeDisplay, SiteSharesDisplay

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
ScreeDisplay.from_estimator(model, ax=left)
SiteSharesDisplay.from_estimator(model, ax=right)
plt.show()
