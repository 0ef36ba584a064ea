"""Four clinics find the components of all their patients; nobody sends a patient anywhere.

python examples/four_clinics.py
"""

from fedpca import FederatedPCA
from fedpca.demo import clinics

tables, _ = clinics()
model = FederatedPCA(n_components=3, scale=True).fit(tables)

print(f"{model.n_samples_} patients at {len(model.run_.sites)} clinics")
print("share of variance:", model.explained_variance_ratio_.round(3))
for clinic, share in model.site_variance_ratio_.items():
    print(f"  {clinic}: {share:.0%} of its own variance")
print(f"{model.run_.rounds} rounds, {model.run_.bytes_up} bytes left the clinics:")
for entry in model.run_.ledger.totals():
    if entry.direction == "up":
        print(f"  {entry.question}.{entry.field}: {entry.bytes} bytes, {entry.how}")
