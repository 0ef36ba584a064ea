"""Estimate the memory that a site and the coordinator need for the questions of a fit.

Each kind of question has a formula for the arrays that are alive at the same time. The largest
result counts. `python benchmarks/plans.py memory` compares the estimates with the resident memory
of real fits. The estimates do not include the program, or rows that a site has in memory anyway.
"""

from __future__ import annotations

from fedpca.linalg.krylov import MAX_KRYLOV_BYTES
from fedpca.rows.in_memory import BLOCK_BYTES
from fedpca.rows.leading import MAX_DENSE_SIDE
from fedpca.solvers.costs import LANCZOS_ROUNDS
from fedpca.solvers.planning.demand import CLIMBS, FACTOR, FLOAT, SCATTERS, Demand

LEAST = 100_000  # bytes of the ledger, headers, and other Python objects
ROBUST_ENTRIES = 1 << 17  # entries of a block, as in `fedpca.solvers.robust.blocks`
ROBUST_ROWS = 64  # least number of rows in a block
# how many arrays of the named size are alive at the same time
SITE_GRAMS = 2.5  # d x d
SITE_FACTORS = 4  # blocks of rows, while their triangular factor is found
SITE_CELLS = 11  # small blocks, while outliers are separated
SITE_SCORES = 3  # n x r
SERVER_GRAMS = 2.5  # d x d
SERVER_BLOCKS = 18  # d x k, between products
SERVER_BASES = 4  # d x columns, of a basis in which directions are compared
SERVER_CLIMBS = 15  # d x m k, of points and products
SERVER_SUMS = 50  # d x r, of robust rounds
SERVER_COUNTS = 6  # histograms


def site_memory(demand: Demand) -> int:
    """Return the bytes that a site needs at most, in addition to rows that it has in memory."""
    n, d = demand.sizes.here, demand.sizes.d
    block, gram, column = min(BLOCK_BYTES, FLOAT * n * d), FLOAT * d**2, FLOAT * d
    message = max(max(each.down, *each.up) // each.times for each in demand.crossed)
    needs = [0.0]
    if demand.has(*SCATTERS):
        needs.append(SITE_GRAMS * gram)
    if demand.has(FACTOR):
        needs.append(SITE_FACTORS * block + gram / 2)
    if demand.n_directions:
        inner = 2 * gram if d <= n else FLOAT * n**2 + 4 * column * demand.n_directions
        needs.append(block + inner)
    if demand.has(*CLIMBS):
        needs.append(_to_climb(demand, block))
    elif demand.products:
        by_rows = block + 4 * column * demand.widest
        needs.append(max(block, SITE_GRAMS * gram) if demand.keeps_gram else by_rows)
    if demand.n_scores:
        cells = column * min(n, max(ROBUST_ROWS, ROBUST_ENTRIES // d))
        needs.append(SITE_CELLS * cells + SITE_SCORES * FLOAT * n * demand.n_scores)
        needs.append(SITE_CELLS * cells / 2 + 3 * message)
    return int(LEAST + max(needs) + message)


def _to_climb(demand: Demand, block: float) -> float:
    """Return the bytes that a site needs to find its own directions in each round."""
    n, d = demand.sizes.here, demand.sizes.d
    if d <= MAX_DENSE_SIDE:
        return 4 * FLOAT * d**2
    if demand.keeps_gram:
        return SITE_GRAMS * FLOAT * d**2
    # a site with few rows decomposes AA'; others look for directions in a basis
    basis = FLOAT * n**2 if n <= MAX_DENSE_SIDE else FLOAT * d * LANCZOS_ROUNDS * demand.sizes.k
    return block + basis + 4 * FLOAT * d * demand.widest


def server_memory(demand: Demand) -> int:
    """Return the bytes that the coordinator needs at most."""
    d, m = demand.sizes.d, demand.n_sites
    gram, column = FLOAT * d**2, FLOAT * d
    answer = max(max(each.up) // each.times for each in demand.crossed)
    needs = [0.0]
    if demand.has(*SCATTERS, "basis_triangle"):
        needs.append(2 * answer + SERVER_GRAMS * gram)
    if demand.has(FACTOR):
        needs.append((3 * m + 1) * gram)
    if demand.n_directions:
        needs.append(2 * (m * answer + 3 * column * min(d, m * demand.n_directions)))
    if demand.has(*CLIMBS):
        compared = [e.lengths["k"] for e in demand.crossed if e.question.name == "basis_product"]
        basis = SERVER_BASES * LANCZOS_ROUNDS * max(compared, default=0)
        needs.append(column * (basis + SERVER_CLIMBS * demand.widest))
    elif demand.products:
        most = max(MAX_KRYLOV_BYTES, 4 * column * demand.widest)
        basis = min(column * min(demand.columns, d), most) if demand.is_lanczos else 0
        needs.append(basis + SERVER_BLOCKS * column * demand.widest)
    if demand.n_scores:
        needs.append(max(SERVER_SUMS * column * demand.n_scores, SERVER_COUNTS * answer))
    return int(LEAST + max(needs))
