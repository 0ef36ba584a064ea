"""What displays draw is what the models hold, and plots are written whole."""

from __future__ import annotations

import numpy as np
import pytest

from command_line import NAMES, ROWS, run
from fedpca import FederatedPCA, PersonalizedPCA, StreamingPCA, Summary
from fedpca.errors import InputError
from fedpca.report import (
    BiplotDisplay,
    ConvergenceDisplay,
    LoadingsDisplay,
    ScreeDisplay,
    SiteSharesDisplay,
    drawing,
)
from fedpca.report.displays import apart

PARTS = {"north": ROWS[:30], "south": ROWS[30:]}


@pytest.fixture(scope="module")
def fitted():
    return FederatedPCA(3, solver="lanczos", random_state=0).fit(PARTS)


@pytest.fixture(scope="module")
def pyplot():
    """Matplotlib, which takes a second to import, without a window."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    return plt


@pytest.fixture(autouse=True)
def close_figures(pyplot):
    yield
    pyplot.close("all")


def test_a_scree_plot_has_a_bar_for_each_component(fitted, pyplot):
    drawn = ScreeDisplay.from_estimator(fitted)
    heights = [bar.get_height() for bar in drawn.ax_.patches]
    np.testing.assert_allclose(heights, fitted.explained_variance_ratio_)
    line = drawn.ax_.get_lines()[0].get_ydata()
    np.testing.assert_allclose(line, np.cumsum(fitted.explained_variance_ratio_))
    assert drawn.figure_ is drawn.ax_.figure
    _, own = pyplot.subplots()
    assert drawn.plot(own).ax_ is own


def test_a_scree_plot_marks_where_certainty_ends(fitted):
    drawn = ScreeDisplay(["1", "2", "3"], fitted.explained_variance_ratio_, n_certain=2).plot()
    assert [line.get_label() for line in drawn.ax_.get_lines()][-1] == "certain up to here"
    assert list(drawn.ax_.get_lines()[-1].get_xdata()) == [2.5, 2.5]


def test_streams_and_summaries_have_components_to_draw():
    for model in (StreamingPCA(2).fit(ROWS), Summary.of(ROWS, 2)):
        assert len(ScreeDisplay.from_estimator(model).ax_.patches) == 2
        with pytest.raises(InputError, match="no record of a run"):
            ConvergenceDisplay.from_estimator(model)
        with pytest.raises(InputError, match="does not say how much"):
            SiteSharesDisplay.from_estimator(model)


def test_loadings_are_sorted_by_size(fitted):
    drawn = LoadingsDisplay.from_estimator(fitted, 1, n_features=3)
    order = np.argsort(-np.abs(fitted.components_[1]))[:3]
    np.testing.assert_array_equal(drawn.loadings, fitted.components_[1, order])
    assert drawn.features == [f"column {j}" for j in order]
    assert sum(len(bars) for bars in drawn.ax_.containers) == 3
    with pytest.raises(InputError, match="component=3 is not one of the 3"):
        LoadingsDisplay.from_estimator(fitted, 3)


def test_the_rounds_of_a_fit_are_drawn(fitted):
    drawn = ConvergenceDisplay.from_estimator(fitted)
    assert drawn.megabytes[-1] * 1e6 == fitted.run_.bytes_up + fitted.run_.bytes_down
    assert np.isfinite(drawn.residuals).any()
    one_pass = ConvergenceDisplay.from_estimator(FederatedPCA(2, solver="covariance").fit(PARTS))
    assert not np.isfinite(one_pass.residuals).any()


@pytest.mark.filterwarnings("ignore:misalignment_")
def test_shares_of_sites_are_drawn(fitted):
    drawn = SiteSharesDisplay.from_estimator(fitted)
    assert list(drawn.sites) == ["north", "south"]
    shared = PersonalizedPCA(1, 1, random_state=0).fit(PARTS)
    drawn = SiteSharesDisplay.from_estimator(shared)
    np.testing.assert_allclose(
        drawn.parts["local"], [s["local"] for s in shared.site_variance_.values()]
    )
    assert len(drawn.ax_.patches) == 4


def test_a_biplot_shows_the_callers_rows(fitted):
    groups = np.repeat(["a", "b"], 40)
    drawn = BiplotDisplay.from_estimator(fitted, ROWS, components=(0, 2), groups=groups)
    np.testing.assert_allclose(drawn.scores, fitted.transform(ROWS)[:, [0, 2]])
    points = np.vstack([each.get_offsets() for each in drawn.ax_.collections])
    assert len(points) == 80
    for wrong in ((0, 3), (1, 1), (-1, 0)):
        with pytest.raises(InputError, match="must be two of the 3 components"):
            BiplotDisplay.from_estimator(fitted, ROWS, components=wrong)
    with pytest.raises(InputError, match="groups has 2 labels"):
        BiplotDisplay.from_estimator(fitted, ROWS, groups=["a", "b"])
    with pytest.raises(InputError, match="a summary has no scores"):
        BiplotDisplay.from_estimator(Summary.of(ROWS, 2), ROWS)


def test_labels_do_not_cover_each_other():
    rng = np.random.default_rng(0)
    points, widths = rng.normal(size=(12, 2)) * 0.3, rng.uniform(0.2, 1.0, size=12)
    places = apart(points, widths, 0.1)
    across, up = (np.abs(places[:, None, axis] - places[None, :, axis]) for axis in (0, 1))
    covered = (across < (widths[:, None] + widths) / 2) & (up < 0.1 - 1e-6)
    np.fill_diagonal(covered, False)
    assert not covered.any()
    same = apart(np.zeros((3, 2)), np.ones(3), 0.1)
    assert len(np.unique(same[:, 1].round(6))) == 3


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    np.savetxt(folder / "x.csv", ROWS, delimiter=",", header=",".join(NAMES), comments="")
    run("fit", folder / "x.csv", "-k", 3, "-o", folder / "m.fedpca")
    return folder / "m.fedpca"


@pytest.mark.parametrize("kind", ["scree", "loadings", "biplot", "sites", "convergence"])
def test_the_shell_writes_plots(kind, model_file, tmp_path):
    more = ["--rows", model_file.with_name("x.csv")] if kind == "biplot" else []
    for name in ("a.svg", "b.svg", "c.png", "d.pdf"):
        done = run("plot", model_file, kind, "-o", tmp_path / name, *more)
        assert done.exit_code == 0, done.stderr
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    again = run("plot", model_file, kind, "-o", tmp_path / "a.svg", *more)
    assert again.exit_code != 0
    assert "already exists" in again.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["scree", "-o", "a.txt"], "must end in .png, .svg, .pdf"),
        (["scree", "-o", "a.svg", "--features", 3], "--features has no effect on scree"),
        (["scree", "-o", "a.svg", "--component", 1], "scree takes 0 of them"),
        (["biplot", "-o", "a.svg"], "name their file with --rows"),
        (["scree", "-o", "a.svg", "--rows", "x.csv"], "--rows has no effect on scree"),
        (["loadings", "-o", "a.svg", "--component", 9], "is not one of the 3 components"),
    ],
)
def test_options_that_make_no_sense_are_refused(given, said, model_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("plot", model_file, *given)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_the_lack_of_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'fedpca\[plot\]'"):
        drawing.pyplot()
