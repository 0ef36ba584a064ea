"""
Background and motion
=====================

Split video from a fixed camera into a shared background and local motion. Each frame is a site.

``python examples/video_background.py`` draws a small scene by itself.
``python examples/video_background.py --data DIR --figure video.png`` reads ``DIR/highway_video.npz``.
The picture needs ``pip install 'fedpca[plot]'``.
"""

import argparse
from pathlib import Path

import numpy as np

from fedpca import PersonalizedPCA

# %%
# Read the frames from a file, or draw a bright square that crosses a still scene.

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path)
parser.add_argument("--figure", type=Path)
options = parser.parse_args()

if options.data:
    with np.load(options.data / "highway_video.npz") as file:
        frames = file["frames"][::4] / 255  # every fourth frame of 200
    n_shared, n_local = 5, 3
else:  # a still scene, and a bright square that crosses it
    rng = np.random.default_rng(0)
    frames = np.tile(0.3 + 0.1 * rng.normal(size=(30, 3)) @ rng.normal(size=(3, 40)), (20, 1, 1))
    for i, frame in enumerate(frames):
        frame[1 + i : 9 + i, 16:24] = 1
    frames += 0.01 * rng.normal(size=frames.shape)
    n_shared, n_local = 3, 1

# %%
# A frame's columns are its observations. Brightness is not an offset to remove, so do not center.

sites = {f"frame {i}": frame.T for i, frame in enumerate(frames)}
pca = PersonalizedPCA(n_shared, n_local, center="none", tol=1e-6).fit(sites)
parts = {name: pca.split(frame, name) for name, frame in sites.items()}

shared, local = (np.array([part[i].T for part in parts.values()]) for i in (0, 1))
still = np.median(frames, axis=0)
moved = np.abs(frames - still) > 0.1
motion = (frames - still)[moved]
print(f"{len(frames)} frames, {n_shared} shared and {n_local} local components each")
print(f"misalignment {pca.misalignment_:.2f}, {pca.run_.rounds} rounds, {pca.run_.stop_reason}")
in_local = local[moved] @ motion / (motion @ motion)
in_shared = (shared - still)[moved] @ motion / (motion @ motion)
print(f"motion: {in_local:.0%} in the local part, {in_shared:.0%} in the shared part")
ratio = np.mean(local[moved] ** 2) / np.mean(local[~moved] ** 2)
print(f"the local part is {ratio:.0f} times as strong in moving areas")

# %%
# Draw three frames and the parts of each.

import matplotlib.pyplot as plt

shown = [len(frames) * i // 4 for i in (1, 2, 3)]
figure, axes = plt.subplots(3, 3, figsize=(7.2, 5.6), layout="constrained")
for column, i in zip(axes.T, shown, strict=True):
    column[0].set_title(f"frame {i}", fontsize=9)
    images = (frames[i], shared[i], np.abs(local[i]))
    for axis, image in zip(column, images, strict=True):
        axis.imshow(image, cmap="gray")
        axis.set(xticks=[], yticks=[])
for axis, what in zip(axes[:, 0], ("frame", "shared", "|local|"), strict=True):
    axis.set_ylabel(what)
if options.figure:
    figure.savefig(options.figure, dpi=62)
plt.show()
