"""Use personalized PCA on images at many sites and on words of debates: Tables 5 and 7.

``table5`` reads omniglot28.npz and cifar10_20k.npz, ``table7`` debates.parquet. ``--quick`` uses
scikit-learn's digits instead, and draws dialogues from the published words.

Source: sections 7.2 to 7.4 of Shi and Kontar, "Personalized PCA: decoupling shared and unique features"
(2024).
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer

from fedpca import PersonalizedPCA
from perpca.baselines import BASELINES, reconstruction_errors
from shared.drawing import show
from shared.sections import has, judge

Array = np.ndarray
REPEATS = 3
MOST = 50  # rounds of PerPCA, after which its error barely moves
TABLE_5 = {  # training and test error, by method
    "FEMNIST": {
        "indivPCA": (0.49, 1.97),
        "CPCA": (1.72, 1.73),
        "distPCA": (1.43, 1.73),
        "PerPCA": (1.44, 1.70),
    },
    "CIFAR10": {
        "indivPCA": (105.68, 120.79),
        "CPCA": (114.79, 115.44),
        "distPCA": (113.56, 115.43),
        "PerPCA": (113.69, 115.33),
    },
}
TABLE_7 = {
    1960: "peace castro africa kennedy now world",
    1976: "billion carter governor africa ford people world",
    1980: "coal oil money energy social security reagan",
    1984: "union tax soviet arms leadership proposal",
    1988: "drug young strong build future enforcement good",
    1992: "bill school children care health taxes reform plan control",
    1996: "clinton security medicare budget tax dole bob",
    2000: "school public plan children money social security health tax",
    2004: "wrong plan cost free saddam troops iraq war health tax",
    2008: "nuclear oil troops iraq afghanistan pakistan health iran energy",
    2012: "million small business china medicare romney jobs tax",
    2016: "russia trump hillary companies taxes mosul iran deal",
    2020: "harris pence trump down joe biden jobs donald health",
}
COMMON = "tax country states make world money people cut"
TOP = 20  # entries of a component that count
ABOUT_ERRORS = """\
The paper gives neither its ranks nor the scale of its pixels, so only the order of methods can be
compared. Ours: the mean squared residual of an image, pixels between 0 and 1, mean over sites; 80 % of
each site's images train. FEMNIST is not available: Omniglot's writers stand in for its own."""
ABOUT_WORDS = """\
The paper prints some of the 20 words with the largest entries in each of two local components; ours
are looked for among the same 20. 'Elsewhere': how many of a year's words are found in the components
of another year, on average."""


def by_writer(folder: Path) -> dict[str, Array]:
    """Read the characters that each drawer of Omniglot wrote in an alphabet, ``(n_i, 784)``."""
    with np.load(folder / "omniglot28.npz") as file:
        images, sites = file["X"].reshape(-1, 784) / 255, file["site"]
    return {str(site): images[sites == site] for site in np.unique(sites)}


def two_classes_each(images: Array, labels: Array, n_sites: int, seed: int) -> dict[str, Array]:
    """Cut every class into equal parts, and deal two of them to each site; rows are images."""
    rng = np.random.default_rng([5, seed])
    classes = np.unique(labels)
    times = 2 * n_sites // len(classes)
    parts = {
        c: np.array_split(rng.permutation(np.flatnonzero(labels == c)), times) for c in classes
    }
    dealt = rng.permutation(np.repeat(classes, times)).reshape(n_sites, 2)
    return {
        f"{i:02d}": np.concatenate([images[parts[c].pop()] for c in pair])
        for i, pair in enumerate(dealt)
    }


def with_pens(n_sites: int) -> dict[str, Array]:
    """Deal digits to writers, whose pens leave traces of their own, fainter or stronger."""
    rng, images = np.random.default_rng(0), load_digits().data / 16
    dealt = np.array_split(rng.permutation(images), n_sites)
    return {
        f"{i:02d}": rows + rng.standard_normal((len(rows), 1)) * rng.standard_normal(64) / 4
        for i, rows in enumerate(dealt)
    }


def cut(sites: dict[str, Array], seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Split each site's rows into 80 % for training and the rest for tests."""
    rng, train, test = np.random.default_rng([80, seed]), {}, {}
    for name, rows in sites.items():
        order, n = rng.permutation(len(rows)), round(0.8 * len(rows))
        train[name], test[name] = rows[order[:n]], rows[order[n:]]
    return train, test


def errors_of_all(sites: dict[str, Array], r1: int, r2: int, seed: int) -> dict[str, tuple]:
    """Return training and test errors of each method; PerPCA's with its misalignment and rounds."""
    train, test = cut(sites, seed)
    found = {name: fit(train, r1, r2).components for name, fit in BASELINES.items()}
    with warnings.catch_warnings():  # the table says how many rounds there were
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = PersonalizedPCA(r1, r2, center="none", n_init=1, tol=1e-6, max_rounds=MOST).fit(
            train
        )
    errors: dict[str, tuple] = {
        name: (mean_of(reconstruction_errors(train, V)), mean_of(reconstruction_errors(test, V)))
        for name, V in found.items()
    }
    ours = mean_of(model.reconstruction_errors(train)), mean_of(model.reconstruction_errors(test))
    return errors | {"PerPCA": (*ours, model.misalignment_, model.run_.rounds)}


def mean_of(errors: dict[str, float]) -> float:
    """Return the mean over sites."""
    return float(np.mean(list(errors.values())))


def table5_sets(options: argparse.Namespace) -> dict[str, tuple[Any, list[tuple[int, int]]]]:
    """Return, by published name, sites as a function of the seed, and ranks; the first are judged."""
    if options.quick:
        print("Quick: scikit-learn's digits at 40 writers, each with a pen of its own.")
        return {"digits": (lambda _: with_pens(40), [(15, 1), (5, 5)])}
    sets: dict[str, tuple[Any, list[tuple[int, int]]]] = {}
    content = "X (5840, 28, 28) uint8 and site, the writer of each image"
    if has(options.data, "omniglot28.npz", content):
        writers = by_writer(options.data)
        sets["FEMNIST"] = (lambda _: writers, [(20, 1), (10, 2), (20, 2), (40, 1), (60, 1)])
    if has(options.data, "cifar10_20k.npz", "X (20000, 32, 32, 3) uint8 and the class y"):
        with np.load(options.data / "cifar10_20k.npz") as file:
            pixels, labels = file["X"].reshape(-1, 3072), file["y"]
        sets["CIFAR10"] = (
            lambda s: {k: X / 255 for k, X in two_classes_each(pixels, labels, 20, s).items()},
            [(20, 2), (2, 1), (50, 5)],
        )
    return sets


def table5(options: argparse.Namespace) -> list[str]:
    """Reconstruct images at many sites that were not seen in training."""
    print(ABOUT_ERRORS)
    missed, others = [], []
    for name, (make, (judged, *tried)) in table5_sets(options).items():
        repeats = 1 if options.quick else REPEATS
        runs = [errors_of_all(make(seed), *judged, seed) for seed in range(repeats)]
        published = TABLE_5.get(name, {})
        lines = []
        for method in runs[0]:
            cells = []
            for i in (0, 1):
                errors = [run[method][i] for run in runs]
                paper = f"{published[method][i]:.2f}" if published else "-"
                cells += [paper, f"{np.mean(errors):.3f} ± {np.std(errors):.3f}"]
            lines.append([method, *cells])
        title = {"FEMNIST": "Omniglot by writer", "CIFAR10": "CIFAR-10, two classes a site"}
        head = ["method", "train, paper", "ours", "test, paper", "ours"]
        about = f"{title.get(name, name)}, r1={judged[0]} and r2={judged[1]}, {repeats} repeats"
        show(f"Table 5, {name}: {about}", head, lines)
        best = [min(run, key=lambda method: run[method][1]) for run in runs]
        target = f"{name}: PerPCA has the lowest test error in every repeat"
        missed += judge(target, set(best) == {"PerPCA"}, ", ".join(best))
        for ranks, run in [(judged, runs[0]), *((r, errors_of_all(make(0), *r, 0)) for r in tried)]:
            errors = [f"{error[1]:.3f}" for error in run.values()]
            lowest = min(run, key=lambda method: run[method][1])
            misalignment, rounds = run["PerPCA"][2:]
            others.append([name, str(ranks), *errors, lowest, f"{misalignment:.2f}", rounds])
    if others:
        head = ["data", "shared, local", *BASELINES, "PerPCA", "lowest", "misalignment", "rounds"]
        show("Test errors with other ranks, first repeat", head, others)
    return missed


def debates(folder: Path) -> tuple[list[str], Array]:
    """Read dialogues of presidential debates, and the election year of each."""
    import pyarrow.parquet as pq

    kinds = [("type", "in", ["Pres", "VP"])]
    columns = ["text", "election_year"]
    table = pq.read_table(folder / "debates.parquet", columns=columns, filters=kinds)
    return table["text"].to_pylist(), table["election_year"].to_numpy().astype(int)


def spoken(seed: int) -> tuple[list[str], Array]:
    """Make up dialogues of the published words: those of their year, and the common ones."""
    rng, texts, years = np.random.default_rng(seed), [], []
    for year, words in TABLE_7.items():
        own, common = words.split(), COMMON.split()
        for _ in range(60):
            said = list(rng.choice(common, rng.poisson(6))) if rng.random() < 0.5 else []
            said += list(rng.choice(own, rng.poisson(4)))
            texts.append(" ".join(said) or "people")
            years.append(year)
    return texts, np.array(years)


def words_found(components: Array, vocabulary: Array, words: list[str]) -> int:
    """Count the words that are among those with the largest entries in any of the components."""
    top = {word for row in components for word in vocabulary[np.argsort(-np.abs(row))[:TOP]]}
    return len(top & set(words))


def table7(options: argparse.Namespace) -> list[str]:
    """Find what each election was about: years are sites, and dialogues are rows of counts."""
    if options.quick:
        print("Quick: dialogues drawn from the published words.")
        texts, years = spoken(0)
    elif has(options.data, "debates.parquet", "text, type and election_year of dialogues"):
        texts, years = debates(options.data)
    else:
        return []
    print(ABOUT_WORDS)
    counter = CountVectorizer(stop_words="english", min_df=1 if options.quick else 4)
    counts, vocabulary = counter.fit_transform(texts), counter.get_feature_names_out()
    sites = {str(year): counts[years == year].astype(float) for year in np.unique(years)}
    published = {str(year): words.split() for year, words in TABLE_7.items()}
    known = sum(word in set(vocabulary) for words in published.values() for word in words)
    found: dict[tuple, dict[str, int]] = {}
    lines: list[list[object]] = []
    for ranks in [(2, 2)] if options.quick else [(2, 2), (4, 2), (2, 4)]:
        model = PersonalizedPCA(*ranks, center="none", n_init=1, tol=1e-8).fit(sites)
        V = model.local_components_
        found[ranks] = {y: words_found(V[y], vocabulary, words) for y, words in published.items()}
        if ranks == (2, 2):
            shared = words_found(model.components_, vocabulary, COMMON.split())
            for year, words in published.items():
                others = [words_found(V[y], vocabulary, words) for y in published if y != year]
                largest = vocabulary[np.argsort(-np.abs(V[year]).max(axis=0))[:7]]
                share = f"{found[ranks][year]} of {len(words)}"
                lines.append([year, share, float(np.mean(others)), " ".join(largest)])
    here = sum(found[2, 2].values())
    elsewhere = sum(float(line[2]) for line in lines)  # type: ignore[arg-type]
    total = sum(map(len, published.values()))
    lines.append(["all", f"{here} of {total}", elsewhere, ""])
    title = f"Table 7: {len(texts)} dialogues, {len(vocabulary)} words, 13 sites, r1=2, r2=2"
    show(title, ["year", "published words found", "elsewhere", "largest entries of ours"], lines)
    print(
        f"Of the paper's {len(COMMON.split())} common words, {shared} are in the shared components."
    )
    print(f"{known} of its {total} key words are not stop words here and could be found at all.")
    for ranks, years_found in found.items():
        print(
            f"with {ranks[0]} shared and {ranks[1]} local: {sum(years_found.values())} of {total}"
        )
    return [
        *judge("half of the published words are found", 2 * here >= total, f"{here} of {total}"),
        *judge("twice as many as elsewhere", here >= 2 * elsewhere, f"{elsewhere:.1f} elsewhere"),
    ]
