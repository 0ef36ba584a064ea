"""Write tables as people keep them: with ids, labels, gaps, units, and columns in any order.

    python examples/tables/make_tables.py FOLDER

`in_python.py` and `in_the_shell.sh` fit components to these files.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

rng = np.random.default_rng(0)


def tumors(folder: Path) -> None:
    """Write three clinics' tumors, with an id, a diagnosis, gaps, and columns in different orders."""
    data = load_breast_cancer(as_frame=True)
    table = data.data.rename(columns=lambda name: name.replace(" ", "_"))
    table = table.mask(rng.random(table.shape) < 0.01)
    table.insert(0, "patient", [f"p{i:03}" for i in range(len(table))])
    table["diagnosis"] = data.target_names[data.target]
    north, south, west = np.array_split(np.arange(len(table)), 3)
    table.iloc[north].to_csv(folder / "north.csv", index=False)
    backward = table.iloc[south, ::-1]
    backward.to_csv(folder / "south.tsv.gz", sep="\t", index=False)
    table.iloc[west].to_parquet(folder / "west.parquet", index=False)


def wines(folder: Path) -> None:
    """Write wines of three cultivars in one table, and in a file with decimal commas for each one."""
    data = load_wine(as_frame=True)
    table = data.data.rename(columns=lambda name: name.replace("/", "_"))
    table["cultivar"] = np.array(["barolo", "grignolino", "barbera"])[data.target]
    table.to_parquet(folder / "wines.parquet", index=False)
    for cultivar, part in table.groupby("cultivar"):
        own = part.drop(columns="cultivar")
        own.to_csv(folder / f"{cultivar}.csv", sep=";", decimal=",", index=False)


def diabetes(folder: Path) -> None:
    """Write two hospitals' measurements, in which a few decimal points are in the wrong place."""
    table = load_diabetes(as_frame=True, scaled=False).data.drop(columns="sex").astype(float)
    values = table.to_numpy()
    wrong = rng.random(values.shape) < 0.01
    values = np.where(wrong, 10 * values, values)
    typed = pd.DataFrame(values, columns=table.columns)
    typed.insert(0, "record", np.arange(1, len(typed) + 1))
    half = len(typed) // 2
    typed[:half].to_csv(folder / "east.csv", index=False)
    typed[half:].to_csv(folder / "center.csv", index=False)


def digits(folder: Path) -> None:
    """Write scanned digits in two archives; each row has an image's file name and its label."""
    data = load_digits(as_frame=True)
    table = data.data.assign(image=[f"scan-{i:04}.png" for i in range(1797)], label=data.target)
    table[:900].to_feather(folder / "archive1.feather")
    table[900:].reset_index(drop=True).to_feather(folder / "archive2.feather")


folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for write in (tumors, wines, diabetes, digits):
    write(folder)
