"""
A private fit
=============

Fit with differential privacy, and see how well an attacker still guesses who is in the rows.

``python examples/private_fit.py``, or ``python examples/private_fit.py --trials 2000`` for more guesses
and steadier figures. The picture needs ``pip install 'fedpca[plot]'``.
"""

import argparse
import math
import warnings

import numpy as np

from fedpca import FederatedPCA, Privacy
from fedpca.audit.differencing import guess_person
from fedpca.solvers.private.utility import expected_share

parser = argparse.ArgumentParser()
parser.add_argument("--trials", type=int, default=200, help="guesses for each attack")
n_trials = parser.parse_args().trials

# %%
# Twelve measurements of 1500 patients at three clinics; the last patient is an unusual one.

BOUND = 8.0  # rows farther than this from the mean are moved to this distance
rng = np.random.default_rng(0)
deviations = np.concatenate([[3.0, 2.0], np.full(10, 0.5)])
rows = rng.standard_normal((1500, 12)) * deviations
rows[-1] = BOUND * rng.choice([-1, 1], 12) / np.sqrt(12)
clinics = np.array_split(rows, 3)

# %%
# The first table shows what share of the variance the fits keep, and what share was expected before
# the fits, from the variances alone.

scatter = np.cov(rows, rowvar=False)
variances = np.linalg.eigvalsh(scatter)[::-1]
epsilons, kept = (math.inf, 10.0, 1.0, 0.1), {}


def named(epsilon: float) -> str:
    return "no privacy" if math.isinf(epsilon) else f"epsilon {epsilon:g}"


print("| fit | share of the variance | expected |")
print("|---|---|---|")
for epsilon in epsilons:
    privacy = Privacy(epsilon=epsilon, delta=1e-6, row_bound=BOUND)
    shares = []
    for _ in range(30):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fits warn about components that noise hides
            V = FederatedPCA(2, privacy=privacy).fit(clinics).components_
        shares.append(np.trace(V @ scatter @ V.T) / variances[:2].sum())
    kept[epsilon] = shares
    expected = expected_share(privacy, variances, len(rows), 2, len(clinics))
    print(f"| {named(epsilon)} | {np.mean(shares):.2f} | {expected:.2f} |")

# %%
# The second table shows how often an attacker is right about the unusual patient. In one attack, this
# patient is the only one with a flag. In the other, this patient was added between two fits. Half of
# all guesses are right by chance.

print("| attack | fit | guesses right | at most |")
print("|---|---|---|---|")
for found in guess_person(rows, BOUND, epsilons=epsilons, n_trials=n_trials):
    print(
        f"| {found.attack} | {named(found.epsilon)} | {100 * found.right:.0f} % "
        f"| {100 * found.most:.0f} % |"
    )

# %%
# Draw what to expect for other values of epsilon and other numbers of rows, before spending any budget.

import matplotlib.pyplot as plt

promises = np.geomspace(0.03, 10, 12)
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for n_rows, color in ((500, "#b4501f"), (1500, "#1f6fb4"), (15000, "0.4")):
    told = [Privacy(epsilon=epsilon, delta=1e-6, row_bound=BOUND) for epsilon in promises]
    expected = [expected_share(privacy, variances, n_rows, 2, 3) for privacy in told]
    axes.semilogx(promises, expected, color=color, label=f"{n_rows} rows")
for epsilon, shares in list(kept.items())[1:]:
    axes.plot(epsilon, np.mean(shares), "o", color="#1f6fb4")
axes.set(xlabel="epsilon", ylabel="share of the variance", ylim=(0, 1.02))
axes.legend(frameon=False)
plt.show()
