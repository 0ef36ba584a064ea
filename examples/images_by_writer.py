"""Split many people's handwriting into strokes that all writers share and each writer's own strokes.

python examples/images_by_writer.py
python examples/images_by_writer.py --data DIR --figure writers.png    with DIR/omniglot28.npz
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split

from fedpca import PersonalizedPCA

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path)
parser.add_argument("--figure", type=Path)
options = parser.parse_args()

if options.data:
    with np.load(options.data / "omniglot28.npz") as file:
        images, drawer = file["X"].reshape(-1, 784) / 255, file["site"]
    writers = {str(name): images[drawer == name] for name in np.unique(drawer)}
else:  # digits written by 40 people, each with a different pen
    rng = np.random.default_rng(0)
    dealt = np.array_split(rng.permutation(load_digits().data / 16), 40)
    pens = rng.normal(size=(40, 64)) / 4
    writers = {
        f"writer {i}": rows + rng.normal(size=(len(rows), 1)) * pen
        for i, (rows, pen) in enumerate(zip(dealt, pens, strict=True))
    }

newcomer, *known = writers
train, test = {}, {}
for name, rows in writers.items():
    train[name], test[name] = train_test_split(rows, test_size=0.2, random_state=0)

# Use the common mean: the mean of one writer's 14 to 42 images would fit only those images. One start
# is enough: other optima differ in the weakest of the 20 components, which hardly affects the errors.
pca = PersonalizedPCA(20, 1, center="common", n_init=1, tol=1e-6)
pca.fit({name: train[name] for name in known})
pca.add_site(newcomer, train[newcomer])  # joins after the fit; shared components do not change
errors = pca.reconstruction_errors(test)


def error(model: PCA, rows: np.ndarray) -> float:
    """Return the mean squared length of the rows' remainders."""
    left = rows - model.inverse_transform(model.transform(rows))
    return float(np.mean(np.sum(left**2, axis=1)))


pooled = PCA(21, random_state=0).fit(np.vstack([train[name] for name in known]))
alone = {name: PCA(min(21, len(rows) - 1)).fit(rows) for name, rows in train.items()}
print("error of 21 components on unseen images, mean over writers:")
print(f"  each writer alone    {np.mean([error(alone[w], test[w]) for w in known]):.3f}")
print(f"  all in one place     {np.mean([error(pooled, test[w]) for w in known]):.3f}")
print(f"  20 shared, 1 local   {np.mean([errors[w] for w in known]):.3f}")
later = f"{errors[newcomer]:.3f}; with pooled components, {error(pooled, test[newcomer]):.3f}"
print(f"error for {newcomer}, who joined later: {later}")

if options.figure:
    import matplotlib.pyplot as plt

    side = int(np.sqrt(pca.n_features_in_))
    figure, axes = plt.subplots(4, 8, figsize=(8, 4.4))
    for column, name in zip(axes.T, known[:: len(known) // 8], strict=False):
        part = pca.split(test[name], name)
        mean, own = pca.site_means_[name], pca.local_components_[name][0]
        i = np.argmax(np.sum(part.local**2, axis=1))
        shared = mean + part.shared[i]
        for axis, image in zip(
            column, (test[name][i], shared, shared + part.local[i], own), strict=True
        ):
            axis.imshow(image.reshape(side, side), cmap="gray_r" if image is not own else "RdBu")
            axis.set(xticks=[], yticks=[])
    for axis, what in zip(axes[:, 0], ("image", "shared", "plus local", "own"), strict=True):
        axis.set_ylabel(what, fontsize=9)
    figure.tight_layout()
    figure.savefig(options.figure, dpi=80)
