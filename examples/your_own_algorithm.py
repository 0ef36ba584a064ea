"""Write your own algorithm: a question that runs at the sites, and a loop that asks it.

python examples/your_own_algorithm.py
"""

import numpy as np

from fedpca import Federation, question


@question(asks={"v": "float64 d"}, answers={"w": "float64 d", "n": "int64"})
def absolute_pull(site, v):
    """Sum a site's rows, each multiplied by the sign of its score on the direction v."""
    total = np.zeros(len(v))
    for rows in site.rows.blocks():
        total += np.sign(rows @ v) @ rows
    return {"w": total, "n": np.int64(site.rows.n_rows)}


def l1_component(fed: Federation, rounds: int) -> np.ndarray:
    """Find the direction with the largest sum of absolute scores, which limits outliers' effect."""
    v = np.ones(3) / np.sqrt(3)
    for _ in range(rounds):
        w = fed.sum(absolute_pull, v=v)["w"]
        v = w / np.linalg.norm(w)
    return v


rng = np.random.default_rng(0)
rows = rng.standard_normal((300, 3)) * [3, 1, 1]
rows[:3] = [0, 60, 0]  # three outlier rows
fed = Federation.local(np.array_split(rows, 3))
print("component:", l1_component(fed, rounds=20).round(2))
print(f"{fed.record.rounds} rounds, {fed.record.bytes_up} bytes up, all of them summed")
