"""Write the other files of `fedpca fit`: local models, outliers, and files for plink."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedpca.cli.console import refuse_overwriting
from fedpca.cli.methods import (
    GENOTYPES_PANEL,
    PERSONALIZED_PANEL,
    ROBUST_PANEL,
    Kind,
    Method,
    refuse_other_kinds,
)
from fedpca.cli.option_groups import option
from fedpca.errors import FileError, InputError
from fedpca.models.outliers import write_outliers
from fedpca.report.plink import NAMED, checked_variants, model_files, write_model
from fedpca.rows.genotypes.genotype_rows import GenotypeRows
from fedpca.site.site import Site
from fedpca.storage.table_file import check_format


@dataclass(frozen=True)
class FitFiles:
    """The files to write; None stands for a file that the user did not request."""

    panel: ClassVar[str] = "Other files to write"

    local_models: Path | None = option(
        None,
        "Also write one model for each site, with its local components, to this folder.",
        Path | None,
        panel=PERSONALIZED_PANEL,
        kinds=(Kind.personalized,),
    )
    outliers: Path | None = option(
        None,
        "Also write a list of outliers to this file (.csv or .parquet); only with FILES.",
        Path | None,
        panel=ROBUST_PANEL,
        kinds=(Kind.robust,),
    )
    plink: Path | None = option(
        None,
        "Also write PREFIX.eigenval, PREFIX.eigenvec.allele, and PREFIX.afreq, as plink2 does, and a "
        "list of the variants left out.",
        Path | None,
        metavar="PREFIX",
        panel=GENOTYPES_PANEL,
    )

    def check(self, method: Method, force: bool, *, has_rows: bool) -> None:
        """Refuse files that do not suit the fit or cannot be written, before any site is asked.

        Local models and outliers belong to the sites, so they are written only where the rows are.
        """
        refuse_other_kinds(method.kind, self)
        if self.plink is not None and not method.binomial:
            raise InputError(
                "--plink requires --binomial, because plink2 scales genotypes that way"
            )
        if not has_rows and (self.local_models or self.outliers):
            raise InputError(
                "--local-models and --outliers require FILES, and do not apply to --cluster; with "
                "--federation, each site keeps its local model and its outliers in its own folder"
            )
        if self.plink is not None:
            for path in model_files(self.plink):
                refuse_overwriting(path, force)
        if self.outliers is not None:
            refuse_overwriting(self.outliers, force)
            check_format(self.outliers)
        folder = self.local_models
        if folder is not None and folder.exists():
            if not folder.is_dir():
                raise FileError(f"--local-models must be a folder, but {folder} is a file")
            if any(folder.glob("*.fedpca")) and not force:
                raise FileError(
                    f"{folder} already contains models; choose a different folder, or use --force to "
                    "overwrite them"
                )

    def write(self, model: Any, sites: Mapping[str, Site]) -> list[Path]:
        """Write the files that go with a fitted model of these sites, and return the files' paths."""
        written = []
        if self.local_models is not None:
            self.local_models.mkdir(parents=True, exist_ok=True)
            for site in model.local_components_:
                path = self.local_models / f"{_file_name(site)}.fedpca"
                model.save_site(site, path)
                written.append(path)
        if self.plink is not None:
            names = checked_variants(getattr(model, "feature_names_in_", None))
            first = sites.get(model.run_.sites[0])  # None if the sites are not in this process
            alleles = (
                first.rows.alleles() if first and isinstance(first.rows, GenotypeRows) else NAMED
            )
            written += write_model(
                self.plink, model.model_, names, model.n_samples_, model.left_out_ or {}, alleles
            )
        if self.outliers is not None:
            features = getattr(model, "feature_names_in_", None)
            rows = {site: sites[site].rows for site in model.run_.sites}
            write_outliers(self.outliers, model.model_, rows, features)
            written.append(self.outliers)
        return written


NO_OTHERS = FitFiles()


def _file_name(site: str) -> str:
    """Return a file name for a site; a checksum distinguishes names that would become equal."""
    safe = re.sub(r"[^\w.-]", "_", site)
    return safe if safe == site else f"{safe}-{zlib.crc32(site.encode()):08x}"
