"""Split video from a fixed camera into a low-rank background and a sparse foreground.

Each frame is a row.

python examples/robust_background.py
python examples/robust_background.py --data DIR --figure video.png     with DIR/highway_video.npz
"""

import argparse
from pathlib import Path

import numpy as np

from fedpca import RobustPCA

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path)
parser.add_argument("--figure", type=Path)
options = parser.parse_args()

if options.data:
    with np.load(options.data / "highway_video.npz") as file:
        frames = file["frames"][::4] / 255  # every fourth frame of 200
else:  # a still scene in changing light, and a bright square that crosses it
    rng = np.random.default_rng(0)
    frames = np.linspace(0.95, 1, 40)[:, None, None] * rng.uniform(0.2, 0.6, size=(30, 40))
    for i, frame in enumerate(frames):
        frame[10:18, i % 32 : i % 32 + 8] = 1
    frames += 0.01 * rng.normal(size=frames.shape)

# Five recorders hold one camera's frames, one hour each.
rows = frames.reshape(len(frames), -1)
sites = {f"recorder {i}": part for i, part in enumerate(np.array_split(rows, 5))}
# The only component is the scene, and a frame's score is its brightness, so do not center.
pca = RobustPCA(1, center="none", random_state=0).fit(sites)
background, foreground = (part.reshape(frames.shape) for part in pca.split(rows))

still = np.median(frames, axis=0)
moved = np.abs(frames - still) > 0.1
motion = (frames - still)[moved]
print(
    f"{len(frames)} frames at {len(sites)} sites, {pca.run_.rounds} rounds, {pca.run_.stop_reason}"
)
print(f"{np.mean(foreground != 0):.0%} of pixels are foreground (threshold {pca.threshold_:.3f})")
in_sparse = foreground[moved] @ motion / (motion @ motion)
in_low_rank = (background - still)[moved] @ motion / (motion @ motion)
print(f"motion: {in_sparse:.1%} in the sparse part, {in_low_rank:.1%} in the low-rank part")
print(f"pixels without motion: {np.mean(foreground[~moved] != 0):.1%} in the sparse part")

if options.figure:
    import matplotlib.pyplot as plt

    shown = [len(frames) * i // 4 for i in (1, 2, 3)]
    figure, axes = plt.subplots(3, 3, figsize=(7.2, 5.6))
    for column, i in zip(axes.T, shown, strict=True):
        column[0].set_title(f"frame {i}", fontsize=9)
        for axis, image in zip(column, (frames, background, np.abs(foreground)), strict=True):
            axis.imshow(image[i], cmap="gray")
            axis.set(xticks=[], yticks=[])
    for axis, what in zip(axes[:, 0], ("frame", "low rank", "|sparse|"), strict=True):
        axis.set_ylabel(what)
    figure.tight_layout()
    figure.savefig(options.figure, dpi=62)
