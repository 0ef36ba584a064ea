"""Define the options shared by several commands, and parse what users type."""

from __future__ import annotations

import ast
import csv
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.errors import InputError
from fedpca.linalg.rank_rules import RULES, check_n_components
from fedpca.protocol.script import FEDERATED
from fedpca.rows.formats.files import BED, name_of
from fedpca.rows.genotypes.plink_files import Genotypes
from fedpca.rows.open import paths_of
from fedpca.site.policy import Policy
from fedpca.site.site import Site, cache_share
from fedpca.solvers.catalogue import AUTO, SOLVERS, find_solver, policy_words

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing output file.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the components as CSV.")]
Json = Annotated[bool, typer.Option("--json", help="Print the contents of the model as JSON.")]
Components = Annotated[
    str,
    typer.Option(
        "-k",
        "--components",
        help="Number of components, share of variance (0.95 or 95%), auto, mp, gap, or all.",
    ),
]
FILES = "One file or folder of rows per site, or NAME=PATH."
Files = Annotated[list[str], typer.Argument(help=FILES)]
Scale = Annotated[
    bool, typer.Option("--scale", help="Divide each feature by its standard deviation.")
]
Drop = Annotated[
    list[str],
    typer.Option(
        help="Column that is not a feature, or several columns: NAME,NAME; may be repeated."
    ),
]
Columns = Annotated[
    list[str],
    typer.Option(help="Column that is a feature; columns that you do not name are then left out."),
]
Id = Annotated[
    list[str], typer.Option(help="Column that identifies the rows, and is not a feature.")
]
Layer = Annotated[
    str | None, typer.Option(help="Layer of an .h5ad file that holds the values; by default, X.")
]
MaskVar = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of var in an .h5ad file that marks the genes to use, such as highly_variable.",
    ),
]
LogNormalize = Annotated[
    float | None,
    typer.Option(
        metavar="SUM",
        help="Normalize the counts of each cell of an .h5ad file to this sum, such as 10000, and take "
        "log(1 + x). All sites must use the same sum.",
    ),
]
OnDevice = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Multiply the rows on this device: cuda, cuda:1, or cpu. Requires PyTorch or CuPy.",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        help="Precision in which the device computes A'A: float64 (the default), or float32 or tf32, "
        "which are many times faster on most GPUs.",
    ),
]
Keep = Annotated[
    Path | None,
    typer.Option(help="File with the samples to use, as for plink's --keep; for genotypes (.bed)."),
]
Extract = Annotated[
    Path | None,
    typer.Option(help="File with the variants to use, as for plink's --extract; for genotypes."),
]
AllowMissing = Annotated[
    bool,
    typer.Option("--allow-missing", help="Accept missing values, for fits with --missing."),
]
Credentials = Annotated[
    Path | None,
    typer.Option(help="Folder with the coordinator's secret and certificates."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Use plain HTTP; only for a network that you trust.")
]
Weight = Annotated[
    str | None, typer.Option(help="Column with the weight of each row; only with FILES.")
]
Host = Annotated[
    str | None,
    typer.Option(help="Use the sites at this server instead of FILES: HOST or HOST:PORT."),
]
Sites = Annotated[
    str | None,
    typer.Option(help="With --federation: number of sites, or their names, as in north,south."),
]
Wait = Annotated[
    float,
    typer.Option(help="Seconds to wait for sites that are offline or busy with a different run."),
]
Purpose = Annotated[
    str, typer.Option(help="Reason for the run, in one line, to show to people at the sites.")
]
APPROVAL_WAIT = "Seconds to wait for sites where a person must approve the run."
ApprovalWait = Annotated[float, typer.Option(help=APPROVAL_WAIT)]
Secure = Annotated[
    bool, typer.Option("--secure", help="Use secure sums: the coordinator reads only totals.")
]
PERSONALIZED_PANEL = "Options of --kind personalized"
ROBUST_PANEL = "Options of --kind robust"
Shared = Annotated[
    int | None,
    typer.Option(
        help="Number of components that all sites share.", rich_help_panel=PERSONALIZED_PANEL
    ),
]
Local = Annotated[
    str | None,
    typer.Option(
        help="Number of local components at each site, or NAME=NUMBER,... for every site.",
        rich_help_panel=PERSONALIZED_PANEL,
    ),
]
Gather = Annotated[
    bool,
    typer.Option(
        "--gather",
        help="With --federation, ask the sites for their local components.",
        rich_help_panel=PERSONALIZED_PANEL,
    ),
]
MaxComponents = Annotated[
    int | None,
    typer.Option(
        help="Upper bound on the number of components, to use instead of -k.",
        rich_help_panel=ROBUST_PANEL,
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        help="Add noise, so that the fit is differentially private for each row. Requires --delta and "
        "--row-bound. With several sites, this also turns on secure sums, which let the sites share "
        "the noise."
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(
        help="Probability that the promise of --epsilon fails; choose it far below one over the number "
        "of rows."
    ),
]
RowBound = Annotated[
    float | None,
    typer.Option(
        help="Largest distance from the mean; rows farther away are moved to this distance. Choose it "
        "from domain knowledge, not by looking at the rows."
    ),
]
Around = Annotated[
    str | None,
    typer.Option(
        help="Point near which rows are expected: one number, or one for each feature; by default, 0."
    ),
]
Silent = Annotated[
    int | None,
    typer.Option(help="Number of sites that may fail to add their noise; by default, 1."),
]
MaxRounds = Annotated[int, typer.Option(help="Stop the solver after this many rounds.")]
FanIn = Annotated[
    int | None,
    typer.Option(
        help="Merge this many summaries at a time, in a tree; by default, all of them, or 32 if the "
        "summaries are many or large."
    ),
]


def components_of(text: str) -> Any:
    """Parse the value of -k: a number, a share, the name of a rule, or None for all."""
    wanted = None if text == "all" else _number(text)
    try:
        check_n_components(wanted)
    except InputError:
        raise InputError(
            f"-k {text} is not valid; use a whole number of components (1 or more), a share of the "
            f"variance between 0 and 1 (as in 0.95 or 95%), {', '.join(RULES)}, or all"
        ) from None
    return wanted


def _number(text: str) -> int | float | str:
    """Return the number in a text, or the text if there is none."""
    plain = f"{text[:-1]}e-2" if text.endswith("%") else text
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return text


def choice_of(drop: list[str], columns: list[str], id: list[str]) -> dict[str, Any]:
    """Parse --drop, --columns, and --id, and return them as options of `Site`.

    Each value is a name, or several names separated by commas. A name with a comma must be in quotes.
    """
    given = {"drop": drop, "columns": columns, "id": id}
    names = {word: [n for text in texts for n in _names(text)] for word, texts in given.items()}
    return {word: listed or None for word, listed in names.items()}


def cells_of(
    layer: str | None, mask_var: str | None, log_normalize: float | None
) -> dict[str, Any]:
    """Return --layer, --mask-var, and --log-normalize as options of `Site`."""
    return {"layer": layer, "mask_var": mask_var, "log_normalize": log_normalize or False}


def _names(text: str) -> list[str]:
    return next(csv.reader([text], skipinitialspace=True), [])


def named_sites(files: list[str]) -> dict[str, str]:
    """Map each site's name, which is the text before "=" or the file name, to its path."""
    sites: dict[str, str] = {}
    for text in files:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = name_of(Path(text).absolute()), text
        if not name or not path:
            raise InputError(f"{text} must be a path or NAME=PATH, as in north=rows.csv")
        if name in sites:
            raise InputError(
                f"two sites are named {name!r}: {sites[name]} and {path}; use different names, as in "
                f"first={sites[name]} second={path}"
            )
        sites[name] = path
    return sites


def opened_sites(
    files: list[str],
    choice: dict[str, Any],
    keep: Path | None = None,
    extract: Path | None = None,
) -> dict[str, Site]:
    """Open the files of each site with the chosen columns, and return the sites by name."""
    sites = named_sites(files)
    share = cache_share(len(sites))
    return {
        name: Site(genotypes_of(path, keep, extract), name=name, memory_limit=share, **choice)
        for name, path in sites.items()
    }


def genotypes_of(source: Any, keep: Path | None, extract: Path | None = None) -> Any:
    """Return the chosen samples and variants of a .bed file, or the source if nothing is chosen."""
    if keep is None and extract is None:
        return source
    paths = paths_of(source)
    if len(paths) != 1 or Path(paths[0]).suffix != BED:
        raise InputError(
            "--keep and --extract require one .bed file for each site; omit them for other rows"
        )
    return Genotypes(paths[0], keep, extract)


def table_or_sites(files: list[str]) -> list[str] | dict[str, str]:
    """Return the paths of one table's files, or a path for each site if all texts are NAME=PATH."""
    n_named = sum("=" in text for text in files)
    if n_named not in (0, len(files)):
        raise InputError(
            "with --cluster, either all FILES or none of them must be NAME=PATH, one for each site"
        )
    # paths are relative to this folder, not to the folder in which a worker was started
    if not n_named:
        return [str(Path(path).absolute()) for path in files]
    return {name: str(Path(path).absolute()) for name, path in named_sites(files).items()}


def sites_of(text: str | None) -> int | list[str] | None:
    """Parse the value of --sites: a number of sites, or their names."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return [name.strip() for name in text.split(",")]


def values_of(option: str, texts: list[str], example: str) -> dict[str, Any]:
    """Parse the values of a repeated option, each of which is NAME=VALUE."""
    given: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"{option} {text} must be NAME=VALUE, as in {example}")
        try:
            given[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[key] = value
    return given


def read_policy(path: Path) -> Policy:
    """Read a site's policy, and refuse words in its ``allow`` that allow nothing."""
    policy = Policy.load(path)
    words = policy_words()
    for word in policy.allow:
        if word in words:
            continue
        if word in SOLVERS:
            raise InputError(
                f"{path}: allow has {word!r}; use {FEDERATED!r}, which includes that solver"
            )
        near = get_close_matches(word, words, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"{path}: allow has {word!r}, which is unknown here; {hint}the known words are "
            f"{', '.join(words)}"
        )
    return policy


def solver_of(name: str, options: list[str], find: Callable[[str], Any] = find_solver) -> Any:
    """Parse --solver and --option, and return a solver's name or a solver with options."""
    if not options:
        return name
    solver = find(name)
    if solver is None:
        raise InputError(f"--option requires a --solver other than {AUTO!r}, which has no options")
    given = values_of("--option", options, "penalty=0.2")
    names = [field.name for field in fields(solver)] if is_dataclass(solver) else []
    unknown = [key for key in given if key not in names]
    if unknown:
        raise InputError(
            f"solver {name!r} has no option {', '.join(unknown)}; its options are: "
            f"{', '.join(names) or 'none'}"
        )
    return type(solver)(**given)
