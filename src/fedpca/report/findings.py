"""Print what a check of sites' rows found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from fedpca.rows.check import Examined, Finding

MAX_COLUMNS = 20  # columns that are listed one by one


def print_check(
    out: Console, sites: Mapping[str, Examined], findings: Sequence[Finding], *, listed: bool
) -> None:
    """Print a table of sites, the columns of each site if ``listed`` is true, and the findings."""
    if sites:
        _print_sites(out, sites)
    if listed:
        for name, site in sites.items():
            _print_columns(out, name, site)
    for finding in findings:
        word = "stops a fit" if finding.stops_fit else "note"
        style = "red" if finding.stops_fit else None
        out.print(f"{word}: {finding.where}: {finding.text}", style=style, soft_wrap=True)


def _print_sites(out: Console, sites: Mapping[str, Examined]) -> None:
    table = Table()
    table.add_column("site")
    for heading in ("rows", "columns"):
        table.add_column(heading, justify="right")
    table.add_column("types")
    for heading in ("NaN", "infinite", "constant"):
        table.add_column(heading, justify="right")
    for name, site in sites.items():
        kinds = Counter(site.dtypes)
        counts = (site.n_nan.sum(), site.n_infinite.sum(), site.is_constant.sum())
        table.add_row(
            name,
            f"{site.n_rows:,}",
            f"{site.n_features:,}",
            ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()),
            *(f"{int(count):,}" for count in counts),
        )
    out.print(table)


def _print_columns(out: Console, name: str, site: Examined) -> None:
    """Print a site's columns; if there are many, print those with the most NaN or infinite values."""
    table = Table(title=f"Columns of {name}", title_justify="left")
    for heading in ("column", "type"):
        table.add_column(heading)
    for heading in ("NaN", "infinite"):
        table.add_column(heading, justify="right")
    table.add_column("constant")
    names = site.names(site.n_nan >= 0)
    order = sorted(range(len(names)), key=lambda i: -(site.n_nan[i] + site.n_infinite[i]))
    shown = range(len(names)) if len(names) <= MAX_COLUMNS else order[:MAX_COLUMNS]
    for i in shown:
        table.add_row(
            names[i],
            site.dtypes[i],
            f"{site.n_nan[i]:,}",
            f"{site.n_infinite[i]:,}",
            "yes" if site.is_constant[i] else "",
        )
    out.print(table)
    if len(names) > MAX_COLUMNS:
        out.print(f"... and {len(names) - MAX_COLUMNS:,} more")
