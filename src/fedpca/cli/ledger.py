"""Run `fedpca ledger`: check a site's ledger."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes
from fedpca.cli.options import Json
from fedpca.cli.terminal import show
from fedpca.engines.default_locations import home
from fedpca.errors import InputError, LedgerError
from fedpca.facts import COUNT, TEXT, Fact, Section
from fedpca.site.answer_log import check_chain, check_proof
from fedpca.site.store import LEDGER

ledger = typer.Typer(
    name="ledger",
    help="Check a site's ledger.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


@ledger.callback()
def group() -> None:
    """Check a site's ledger."""


@ledger.command("verify")
def verify(
    file: Annotated[
        Path | None,
        typer.Argument(help="The ledger; by default, the one that `fedpca join` writes."),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="The site's name; by default, the name of the ledger's folder."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Also compare the ledger with the run record in this model file."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="With --model: the site's key file, NAME.pub or NAME.key."),
    ] = None,
    json: Json = False,
) -> None:
    """Check that nobody changed, removed, or inserted lines in a site's ledger.

    The ledger itself does not show whether lines were removed from its end. To find out, use --model:
    the command then looks for the entry that the site signed for the fit of that model. With --key, the
    command checks the signature too.

    The exit code is 1 if the ledger was altered or does not match the model.
    """
    with exit_codes(json=json):
        if key is not None and model is None:
            raise InputError("--key requires --model, because it checks a signature in the model")
        path = file or _ledger_of(site)
        check = check_chain(path)
        entries = f"{check.n_entries} entries from {len(check.runs)} runs"
        if check.problem:
            raise LedgerError(
                f"{path}: {check.problem}; the {entries} before this point are verified"
            )
        if model is None:
            hint = "use --model to see whether the last lines were removed"
            proven = Fact("proof", None, TEXT._replace(unknown=hint))
        else:
            name, proof = _proof_in(model, site, path)
            proven = _compare(path, name, proof, model, key)
        show((*check.facts(), Section("", (Fact("file", path), proven))), json=json)


def _compare(
    path: Path, site: str, proof: Mapping[str, str], model: Path, key: Path | None
) -> Fact:
    """Return which entry a model's proof is about; refuse a ledger or a key that does not match."""
    number, problem = check_proof(path, proof)
    if problem:
        raise LedgerError(f"{path} does not match {model} for {site!r}: {problem}")
    if key is not None:
        from fedpca.engines.credentials import public_key_in, refuse_unproven

        refuse_unproven(proof, public_key_in(key))
    signed = "" if key is None else ", and its signature is valid"
    return Fact("proof", number, COUNT, "entry", f"the last answer of {site} in {model}{signed}")


def _ledger_of(site: str | None) -> Path:
    """Return the ledger that `fedpca join` writes for a site, or for the only site on this machine."""
    folder = home() / "sites"
    if site is not None:
        return LEDGER.path(folder / site, site)
    found = sorted(folder.glob(f"*/{LEDGER.pattern}"))
    if len(found) != 1:
        names = ", ".join(path.parent.name for path in found) or "none"
        raise InputError(
            f"specify a ledger file, or choose a site with --site; the sites in {folder} are: {names}"
        )
    return found[0]


def _proof_in(model: Path, site: str | None, path: Path) -> tuple[str, Mapping[str, str]]:
    """Return the name of the site that wrote a ledger, and the site's proof in a model file."""
    from fedpca.estimators import load
    from fedpca.report.contents import run_of

    proofs = run_of(load(model)).proofs
    name = site or path.resolve().parent.name
    if site is None and name not in proofs and len(proofs) == 1:
        name = next(iter(proofs))
    if name not in proofs:
        if not proofs:
            raise InputError(
                f"{model} has no signed answer from any site; check the ledger without --model"
            )
        raise InputError(
            f"{model} has no signed answer from {name!r}; use --site with one of: {', '.join(proofs)}"
        )
    return name, proofs[name]
