"""Simulated cohorts in PLINK 1 filesets, which tests share."""

from __future__ import annotations

import numpy as np

MAGIC = b"\x6c\x1b\x01"
COMPLEMENT = {"A": "T", "C": "G", "G": "C", "T": "A"}


def simulated(n, d, *, seed=0, missing=0.02, n_populations=3):
    """Genotypes of samples from a few populations, (n, d), and the two alleles of each variant."""
    rng = np.random.default_rng(seed)
    ancestral = rng.uniform(0.2, 0.8, d)
    frequency = np.clip(ancestral + rng.normal(0, 0.15, (n_populations, d)), 0.05, 0.95)
    G = rng.binomial(2, frequency[rng.integers(0, n_populations, n)]).astype(float)
    G[rng.random((n, d)) < missing] = np.nan
    alleles = [("AG", "GT", "CA", "CT")[j] for j in rng.integers(0, 4, d)]
    return G, alleles


def write_fileset(path, G, alleles, *, ids=None, samples=None, positions=None, chromosomes=None):
    """Write genotypes that count the first allele of each variant; return the path of the .bed."""
    n, d = G.shape
    ids = [f"rs{j}" for j in range(d)] if ids is None else ids
    positions = range(1, d + 1) if positions is None else positions
    chromosomes = [1] * d if chromosomes is None else chromosomes
    samples = [f"i{i}" for i in range(n)] if samples is None else samples
    codes = np.zeros((d, -(-n // 4) * 4), np.uint8)
    codes[:, :n] = np.select([np.isnan(G), G == 2, G == 1], [1, 0, 2], 3).T
    packed = (codes.reshape(d, -1, 4) << np.array([0, 2, 4, 6], np.uint8)).sum(2, dtype=np.uint8)
    bed = path.with_suffix(".bed")
    bed.write_bytes(MAGIC + packed.tobytes())
    lines = zip(chromosomes, ids, positions, alleles, strict=True)
    bed.with_suffix(".bim").write_text(
        "".join(f"{c}\t{i}\t0\t{p}\t{a[0]}\t{a[1]}\n" for c, i, p, a in lines)
    )
    bed.with_suffix(".fam").write_text("".join(f"f\t{s}\t0\t0\t0\t-9\n" for s in samples))
    return bed


def turned(G, alleles, which, *, strand=False):
    """The same genotypes with the alleles of some variants the other way around, or complementary."""
    G, alleles = G.copy(), list(alleles)
    for j in which:
        if strand:
            alleles[j] = COMPLEMENT[alleles[j][0]] + COMPLEMENT[alleles[j][1]]
        else:
            G[:, j], alleles[j] = 2 - G[:, j], alleles[j][::-1]
    return G, alleles


def counted(G, alleles):
    """Genotypes that count the allele that is A on one of the strands, as rows of a site do."""
    return np.where([a[0] in "AT" for a in alleles], G, 2 - G)


def three_cohorts(folder, *, n=90, d=60, seed=0, missing=0.02):
    """Write three cohorts, and return their files and the pooled genotypes of the variants in common.

    The second cohort has alleles the other way around and from the other strand, and in another order.
    Each cohort has a variant of its own, and the last two disagree with the first about one each.
    """
    G, alleles = simulated(n, d + 4, seed=seed, missing=missing)
    alleles[d + 3] = "AT"
    parts = np.array_split(np.arange(n), 3)
    names = [f"rs{j}" for j in range(d + 4)]
    beds = []
    for i, part in enumerate(parts):
        own, letters = G[part], list(alleles)
        positions = list(range(1, d + 5))
        if i == 1:
            own, letters = turned(own, letters, range(0, d, 3))
            own, letters = turned(own, letters, range(0, d, 4), strand=True)
            letters[d] = {"AG": "AC", "GT": "AG", "CA": "AG", "CT": "AC"}[alleles[d]]
        if i == 2:
            positions[d + 1] += 1000
        chosen = [j for j in range(d + 4) if not (j == d + 2 and i == 0)]
        if i == 1:
            chosen = chosen[::-1]
        beds.append(
            write_fileset(
                folder / f"cohort{i}",
                own[:, chosen],
                [letters[j] for j in chosen],
                ids=[names[j] for j in chosen],
                positions=[positions[j] for j in chosen],
                samples=[f"i{k}" for k in part],
            )
        )
    return beds, counted(G[:, :d], alleles[:d]), parts
