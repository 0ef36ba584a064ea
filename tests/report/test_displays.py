"""What displays draw is what the models hold, and plots are written whole."""

from __future__ import annotations

from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pytest

from command_line import NAMES, ROWS, run
from fedpca import (
    FederatedPCA,
    Federation,
    PersonalizedPCA,
    Privacy,
    RobustPCA,
    StreamingPCA,
    Summary,
)
from fedpca.audit.exposures import Exposure, Leakage
from fedpca.errors import InputError
from fedpca.report import (
    BiplotDisplay,
    ConvergenceDisplay,
    LeakDisplay,
    LoadingsDisplay,
    PartsDisplay,
    ScreeDisplay,
    SiteSharesDisplay,
    UtilityDisplay,
    drawing,
)
from fedpca.report.biplot import apart
from fedpca.solvers.private.utility import expected_share

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
        with pytest.raises(InputError, match="does not have shares for its sites"):
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
    assert drawn.bytes_up.sum() == fitted.run_.bytes_up
    heights = [sum(bar.get_height() for bar in bars) for bars in drawn.bytes_ax_.containers]
    assert drawn.bytes_ax_.get_ylabel() == "bytes in the round"
    np.testing.assert_allclose(heights, [fitted.run_.bytes_up, fitted.run_.bytes_down])
    assert drawn.ax_ is not drawn.bytes_ax_
    shown = drawn.ax_.get_lines()[0].get_ydata()
    known = [entry["residual"] for entry in fitted.run_.history if entry["residual"]]
    np.testing.assert_array_equal(shown, known)
    assert list(drawn.ax_.get_lines()[1].get_ydata()) == [fitted.tol] * 2
    one_pass = ConvergenceDisplay.from_estimator(FederatedPCA(2, solver="covariance").fit(PARTS))
    assert not np.isfinite(one_pass.residuals).any()
    assert one_pass.ax_ is one_pass.bytes_ax_


def test_a_plot_of_several_panels_divides_the_axes_it_is_given(fitted):
    figure, axes = plt.subplots(1, 2)
    drawn = ConvergenceDisplay.from_estimator(fitted, ax=axes[0])
    assert drawn.figure_ is figure
    assert len(figure.axes) == 3
    with pytest.raises(InputError, match=r"pyplot\.subplots"):
        drawn.plot(plt.figure().add_axes((0, 0, 1, 1)))


def test_large_amounts_are_in_large_units():
    assert [drawing.in_units(np.array([n]))[1] for n in (5, 5e3, 5e6, 5e9)] == [
        "bytes",
        "kB",
        "MB",
        "GB",
    ]


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
        with pytest.raises(InputError, match="must be two different components out of 3"):
            BiplotDisplay.from_estimator(fitted, ROWS, components=wrong)
    with pytest.raises(InputError, match="groups has 2 labels"):
        BiplotDisplay.from_estimator(fitted, ROWS, groups=["a", "b"])
    with pytest.raises(InputError, match="pass X, sites, or both"):
        BiplotDisplay.from_estimator(fitted)
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


@pytest.mark.parametrize("scale", [False, True])
def test_a_sites_ellipse_is_that_of_its_scores(scale):
    model = FederatedPCA(3, scale=scale, random_state=0).fit(PARTS)
    summaries = {name: Summary.of(rows) for name, rows in PARTS.items()}
    drawn = BiplotDisplay.from_estimator(model, sites=summaries, components=(0, 2))
    assert not len(drawn.scores)  # no single row is known
    assert drawn.ax_.get_legend_handles_labels()[1] == ["north", "south"]
    for name, rows in PARTS.items():
        scores = model.transform(rows)[:, [0, 2]]
        np.testing.assert_allclose(drawn.ellipses[name].mean, scores.mean(axis=0), atol=1e-9)
        np.testing.assert_allclose(drawn.ellipses[name].covariance, np.cov(scores.T), atol=1e-9)
        edge = drawn.ellipses[name].points().T - scores.mean(axis=0)
        squares = np.einsum("ij,jk,ik->i", edge, np.linalg.inv(np.cov(scores.T)), edge)
        np.testing.assert_allclose(squares, 5.9915, rtol=1e-4)  # chi-squared of 2, at 95 %
    own = BiplotDisplay.from_estimator(model, PARTS["north"], sites={"south": summaries["south"]})
    assert own.ax_.get_legend_handles_labels()[1] == ["your rows", "south"]


@pytest.mark.filterwarnings("ignore:misalignment_")
def test_ellipses_that_would_mean_nothing_are_refused(fitted):
    with pytest.raises(InputError, match="'a' must have the model's features"):
        BiplotDisplay.from_estimator(fitted, sites={"a": Summary.of(ROWS[:, :4])})
    with pytest.raises(InputError, match="'a' has 2 rows"):
        BiplotDisplay.from_estimator(fitted, sites={"a": Summary.of(ROWS[:2])})
    shared = PersonalizedPCA(2, 1, random_state=0).fit(PARTS)
    with pytest.raises(InputError, match="centers each site on its own mean"):
        BiplotDisplay.from_estimator(shared, sites={"a": Summary.of(ROWS)})


@pytest.fixture(scope="module")
def robust():
    X = np.random.default_rng(0).normal(size=(60, 2)) @ np.arange(12.0).reshape(2, 6)
    X[5, 3] += 100
    return RobustPCA(2, random_state=0).fit({"north": X[:30], "south": X[30:]}), X


def test_rows_are_drawn_beside_their_parts(robust):
    model, X = robust
    X = X.copy()
    X[7, 0] = np.nan
    drawn = PartsDisplay.from_estimator(model, X, n_rows=3, n_features=4)
    assert 5 in drawn.row_numbers
    assert drawn.features[-1] == "column 3"  # the outlier; the others come first
    i, j = list(drawn.row_numbers).index(5), list(drawn.features).index("column 3")
    rows, low_rank, sparse = drawn.parts
    np.testing.assert_allclose(rows[i, j], low_rank[i, j] + sparse[i, j], rtol=1e-9)
    assert sparse[i, j] > 50
    assert [each.get_title() for each in drawn.axes_] == ["rows", "low-rank part", "outliers"]
    whole = PartsDisplay.from_estimator(model, X)
    assert np.isnan(whole.parts[0][7, 0])
    assert np.isnan(whole.parts[2][7, 0])
    assert np.isfinite(whole.parts[1][7, 0])  # which the model fills in


def test_parts_need_a_robust_model(fitted):
    with pytest.raises(InputError, match="FederatedPCA does not split rows"):
        PartsDisplay.from_estimator(fitted, ROWS)


def test_outliers_of_sites_are_drawn(robust):
    drawn = SiteSharesDisplay.from_estimator(robust[0])
    shares = list(robust[0].sparse_share_.values())
    np.testing.assert_array_equal(drawn.parts["outliers"], shares)
    assert drawn.ax_.get_xlabel() == "share of outliers among the site's entries"


def test_a_leak_curve_is_that_of_the_most_exposed_site():
    found = [
        Exposure("subspace-iteration", listener, site, "products", number, error, 0.0)
        for listener, factor in (("seen", 1e-9), ("summed", 1.0))
        for site, times in (("north", 1.0), ("south", 0.5))
        for number, error in ((1, factor * times), (2, factor * times / 4))
    ]
    drawn = LeakDisplay.from_leakage(Leakage(tuple(found), {"north": 0.4, "south": 0.3}))
    assert drawn.curves["seen"]["subspace-iteration"] == [(1, 0.5e-9), (2, 0.125e-9)]
    assert drawn.curves["summed"]["subspace-iteration"] == [(1, 0.5), (2, 0.125)]
    assert drawn.guess == 0.3
    for each in drawn.axes_:
        assert list(each.get_lines()[-1].get_ydata()) == [0.3, 0.3]
    assert drawn.ax_ is drawn.axes_[0]


def test_utility_is_what_the_planner_expects(fitted):
    drawn = UtilityDisplay.from_estimator(fitted, delta=1e-6, row_bound=9.0, epsilons=(0.1, 10.0))
    rest = [float(fitted.noise_variance_)] * 2
    variances = np.array([*fitted.explained_variance_, *rest])
    expected = [
        expected_share(Privacy(e, 1e-6, 9.0), variances, fitted.n_samples_, 3, 2)
        for e in (0.1, 10.0)
    ]
    np.testing.assert_array_equal(drawn.shares, expected)
    assert drawn.shares[0] < drawn.shares[1]
    for model in (StreamingPCA(2).fit(ROWS), Summary.of(ROWS, 2)):
        UtilityDisplay.from_estimator(model, delta=1e-6, row_bound=9.0, epsilons=(1.0,))
    with pytest.raises(InputError, match="pass delta and row_bound"):
        UtilityDisplay.from_estimator(fitted)


@pytest.mark.filterwarnings("ignore:only [01] of the 2 components stand out")
def test_a_private_run_knows_its_promise(robust):
    settings = Privacy(epsilon=5.0, delta=1e-6, row_bound=100.0)
    federation = Federation.local([ROWS[:40], ROWS[40:]], secure=True)
    private = FederatedPCA(2, privacy=settings).fit(federation)
    drawn = UtilityDisplay.from_estimator(private, epsilons=(0.1, 10.0))
    assert drawn.epsilon == 5.0
    with pytest.raises(InputError, match="RobustPCA has no private fit"):
        UtilityDisplay.from_estimator(robust[0], delta=1e-6, row_bound=9.0)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("price $x$ and $\\frac$", "price \\$x\\$ and \\$\\frac\\$"),
        ("_hidden", " _hidden"),
        ("two\nlines", "two\\nlines"),
        ("x" * 50, "x" * 29 + "..."),
    ],
)
def test_names_are_drawn_as_they_are(name, shown):
    assert drawing.label(name) == shown


def test_odd_names_do_not_end_a_plot(tmp_path):
    names = ["$\\frac$", "_b", "</text><script>alert(1)</script>", "日本", "\u202e$x$"]
    model = FederatedPCA(2, random_state=0)
    model.fit({f"{n}$": pa.table(dict(zip(names, r.T, strict=True))) for n, r in PARTS.items()})
    groups = np.repeat(["_x", "$y$"], 40)
    rows = pa.table(dict(zip(names, ROWS.T, strict=True)))
    for drawn in (
        LoadingsDisplay.from_estimator(model),
        SiteSharesDisplay.from_estimator(model),
        BiplotDisplay.from_estimator(model, rows, groups=groups),
    ):
        drawing.save_figure(drawn.figure_, tmp_path / "x.svg")
        text = (tmp_path / "x.svg").read_text("utf-8")
        assert "<script" not in text
        assert not list(ElementTree.fromstring(text).iter("script"))
        (tmp_path / "x.svg").unlink()


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    np.savetxt(folder / "x.csv", ROWS, delimiter=",", header=",".join(NAMES), comments="")
    run("fit", folder / "x.csv", "-k", 3, "-o", folder / "m.fedpca")
    run("summarize", folder / "x.csv", "-k", 3, "-o", folder / "x.summary")
    run("fit", folder / "x.csv", "-k", 2, "--kind", "robust", "-o", folder / "parts.fedpca")
    return folder / "m.fedpca"


@pytest.mark.parametrize(
    "kind",
    ["scree", "loadings", "biplot", "ellipses", "sites", "convergence", "parts", "utility"],
)
def test_the_shell_writes_plots(kind, model_file, tmp_path):
    rows = ["--rows", model_file.with_name("x.csv")]
    more = {
        "biplot": [*rows, "--component", 1, "--component", 3],
        "ellipses": ["--summary", model_file.with_name("x.summary")],
        "loadings": ["--component", 2, "--features", 2],
        "parts": rows,
        "utility": ["--delta", 1e-6, "--row-bound", 9],
    }.get(kind, [])
    if kind == "parts":
        model_file = model_file.with_name("parts.fedpca")
    kind = "biplot" if kind == "ellipses" else kind
    for name in ("a.svg", "b.svg", "c.png", "d.pdf"):
        done = run("plot", model_file, kind, "-o", tmp_path / name, *more)
        assert done.exit_code == 0, done.stderr
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    again = run("plot", model_file, kind, "-o", tmp_path / "a.svg", *more)
    assert again.exit_code != 0
    assert "already exists" in again.stderr


def test_the_shell_colors_rows_by_a_column(model_file, tmp_path, monkeypatch):
    head, *lines = model_file.with_name("x.csv").read_text().splitlines()
    lines = [f"{line},clinic {i % 3}" for i, line in enumerate(lines)]
    (tmp_path / "rows.csv").write_text("\n".join([f"{head},clinic", *lines]))
    drawn = []
    monkeypatch.setattr("fedpca.cli.plot.save_figure", lambda figure, _: drawn.append(figure))
    for kind in ("biplot", "control"):
        done = run(
            "plot", model_file, kind, "-o", tmp_path / "a.svg", "--rows", tmp_path / "rows.csv",
            "--groups", "clinic",
        )  # fmt: skip
        assert done.exit_code == 0, done.stderr
        texts = [each.get_text() for each in drawn[-1].axes[0].get_legend().get_texts()]
        assert {"clinic 0", "clinic 1", "clinic 2"} <= set(texts)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["scree", "-o", "a.svg", "--groups", "x"], "--groups has no effect on scree"),
        (["scree", "-o", "a.txt"], "must end in one of .png, .svg, .pdf"),
        (["scree", "-o", "a.svg", "--features", 3], "--features has no effect on scree"),
        (["scree", "-o", "a.svg", "--component", 1], "scree accepts --component 0 times"),
        (["biplot", "-o", "a.svg"], "name a file of rows with --rows"),
        (["scree", "-o", "a.svg", "--rows", "x.csv"], "--rows has no effect on scree"),
        (["parts", "-o", "a.svg"], "parts shows your own rows"),
        (["parts", "-o", "a.svg", "--rows", "x.csv"], "does not split rows into parts"),
        (["utility", "-o", "a.svg"], "pass delta and row_bound"),
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
