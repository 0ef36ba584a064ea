"""Open the sites that a command uses: files on this machine, or sites at a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from fedpca.cli.console import err
from fedpca.cli.live import each_of
from fedpca.cli.option_groups import given_options, option
from fedpca.cli.options import (
    CREDENTIALS_FOLDER,
    USE_PLAIN_HTTP,
    opened_sites,
    sites_of,
    sources_of,
    table_or_sites,
)
from fedpca.cli.progress import approvals
from fedpca.coordinator.federation import ON_REFUSAL, Federation
from fedpca.coordinator.record import RunRecord
from fedpca.errors import InputError
from fedpca.rows.formats.files import BED, kind_of
from fedpca.rows.open import opened_paths
from fedpca.rows.reading import Reading
from fedpca.site.site import Site
from fedpca.storage import atomic

N_SITES = 3  # for a plan
OF_SERVERS = ("federation", "wait", "credentials", "insecure", "purpose", "approval_wait")
OF_ROUNDS = ("cluster", "jobs", "quorum", "on_refusal", "timeout", "journal")
NO_SITE_ASKED = dict.fromkeys((*OF_SERVERS, *OF_ROUNDS), "no site is asked")
ELSEWHERE = {"query", "keep", "extract"}  # read here, and not by the workers of a cluster


@dataclass(frozen=True)
class WhichSites:
    """Which sites a command asks, and how: in files, at a server, or the workers of a cluster."""

    panel: ClassVar[str] = "Which sites are asked, and how"

    federation: str | None = option(
        None, "Use the sites at this server instead of FILES: HOST or HOST:PORT.", str | None
    )
    cluster: str | None = option(
        None,
        "Address of a Dask scheduler, HOST:PORT; the workers of its cluster then read FILES.",
        str | None,
    )
    jobs: int | None = option(
        None, "Number of sites that work at the same time; only with FILES.", int | None
    )
    sites: str | None = option(
        None,
        "Number of sites, or their names, as in north,south; by default, all sites at the server, and "
        f"{N_SITES} for a plan.",
        str | None,
    )
    wait: float = option(
        60.0,
        "Seconds to wait for sites that are offline or busy with a different run.",
        float,
    )
    credentials: Path | None = option(None, CREDENTIALS_FOLDER, Path | None)
    insecure: bool = option(False, USE_PLAIN_HTTP, bool, "--insecure")
    purpose: str = option(
        "", "Reason for the run, in one line, to show to people at the sites.", str
    )
    approval_wait: float = option(
        0.0, "Seconds to wait for sites where a person must approve the run.", float
    )
    secure: bool = option(
        False, "Use secure sums: the coordinator reads only totals.", bool, "--secure"
    )
    quorum: int | None = option(
        None, "Number of sites that must answer each round; by default, all.", int | None
    )
    on_refusal: str = option(
        ON_REFUSAL[0],
        "What happens if a site refuses and a quorum remains: lose the site, or stop.",
        str,
        metavar="|".join(ON_REFUSAL),
        complete=lambda: list(ON_REFUSAL),
    )
    timeout: float | None = option(
        None,
        "Seconds to wait for an answer; by default, 600 with --federation, and otherwise no limit.",
        float | None,
    )
    journal: Path | None = option(
        None,
        "Record the run in this file, so that the same command can resume the run.",
        Path | None,
    )

    @property
    def are_here(self) -> bool:
        """Return whether this process reads the rows."""
        return self.federation is None and self.cluster is None

    def check(self, files: list[str] | None, reading: Reading) -> None:
        """Refuse options that contradict each other, before anything is opened."""
        if self.journal is not None and not self.journal.exists():
            atomic.check_writable(self.journal)
        if (self.federation is None) == (not files and reading.query is None):
            raise InputError("specify either the sites' files or --federation HOST, but not both")
        if self.federation is not None:
            refuse_reading(reading)
            if self.cluster is not None:
                raise InputError("--federation and --cluster are mutually exclusive; use only one")
            if self.jobs is not None:
                raise InputError(
                    "--jobs does not apply with --federation, because the sites of a federation all "
                    "work at the same time; omit --jobs"
                )
            return
        far = ("--sites", "--credentials", "--insecure", "--purpose", "--approval-wait")
        useless = [flag for flag in given_options(self) if flag in far]
        if useless:
            raise InputError(f"{', '.join(useless)}: these options require --federation HOST")
        if self.cluster is not None and (self.jobs is not None or reading.given.keys() & ELSEWHERE):
            raise InputError(
                "--jobs, --query, --keep, and --extract do not apply with --cluster; omit them"
            )

    def opened(
        self, files: list[str] | None, databases: list[str], reading: Reading
    ) -> dict[str, Site]:
        """Return the sites that this process opens, which are none if the rows are elsewhere."""
        return opened_sites(sources_of(files, databases, reading), reading) if self.are_here else {}

    def join(
        self,
        opened: Mapping[str, Site],
        files: list[str] | None,
        reading: Reading,
        *,
        quiet: bool,
        is_private: bool = False,
        on_waiting: Callable[..., None] | None = None,
        on_online: Callable[..., None] | None = None,
    ) -> Federation:
        """Return the federation of the chosen sites; private fits of several sites are secure."""
        is_many = self.federation is not None or len(opened) > 1
        options: dict[str, Any] = {
            "quorum": self.quorum,
            "on_refusal": self.on_refusal,
            "journal": self.journal,
            "secure": self.secure or (is_private and is_many),
        }
        if self.timeout is not None:
            options["timeout"] = self.timeout
        if self.cluster is not None:
            table = table_or_sites(files or [])
            return Federation.dask(self.cluster, table, reading=reading, **options)
        if self.federation is None:
            return Federation.local(opened, n_jobs=self.jobs, **options)
        if not quiet and err.is_terminal:
            err.print(f"waiting for the sites at {self.federation}")
        return Federation.flower(
            self.federation,
            sites=sites_of(self.sites),
            wait=self.wait,
            credentials=self.credentials,
            insecure=self.insecure,
            purpose=self.purpose,
            approval_wait=self.approval_wait,
            on_waiting=each_of(approvals(quiet), on_waiting),
            on_online=on_online,
            **options,
        )

    def join_for(
        self,
        fitted: Any,
        files: list[str] | None,
        databases: list[str],
        reading: Reading,
        *,
        quiet: bool,
    ) -> Federation:
        """Return the federation of the chosen sites, whose rows are to be compared with a model's.

        If the user chooses no columns, only the features of the fitted model are read from files with
        column names, which leaves out ids and other columns that were not in the fit.
        """
        self.check(files, reading)
        if self.federation is None:
            sources = (
                files or [] if self.cluster else sources_of(files, databases, reading).values()
            )
            reading = _as_in_model(fitted, sources, reading)
        opened = self.opened(files, databases, reading)
        return self.join(opened, files, reading, quiet=quiet)


FILES_ONLY = WhichSites()


def refuse_reading(reading: Reading) -> None:
    """Refuse options for rows that this machine does not read."""
    if reading.given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in reading.given)
        raise InputError(
            f"{flags}: these options only apply to files; each site in a federation passes them to "
            "fedpca join"
        )


def _as_in_model(fitted: Any, sources: Iterable[str], reading: Reading) -> Reading:
    """Return the reading with the columns and the normalization of a fitted model."""
    if reading.columns is not None:
        return reading
    features = getattr(fitted, "feature_names_in_", None)
    target = reading.log_normalize or getattr(fitted, "run_", RunRecord()).log_normalized
    reading = replace(reading, log_normalize=target, of_model=True)
    paths = [] if reading.query is not None else list(sources)
    # sites with genotypes agree on the model's variants in the run, and tell which of them are absent
    are_genotypes = any(kind_of(path) == BED for path in opened_paths(paths))
    if features is None or reading.drop or reading.mask_var is not None or are_genotypes:
        return reading
    return replace(reading, columns=tuple(str(name) for name in features))
