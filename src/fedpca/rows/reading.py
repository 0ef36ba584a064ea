"""Declare how rows are read: each option is one field of one frozen value, with its help text.

Python's keyword arguments, the options of the command line, the settings of a node, the fingerprint of
the rows, and the refusal of options that do not apply to some rows all follow from the fields.
"""

from __future__ import annotations

import csv
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from fedpca.errors import InputError
from fedpca.rows.columns import distinct_names, some_of
from fedpca.rows.weighted import as_numbers

TARGET_SUM = 1e4  # by default, the sum to which the values of each cell are scaled
HOW = "how"  # the parameter of a function that takes options by name, and no other names

F = TypeVar("F", bound=Callable[..., Any])
OptionCheck = Callable[[str, Any], Any]  # of an option's name and value; returns the value to keep


class OptionKind(Enum):
    """The kinds of rows to which an option may or may not apply.

    An option for the files of one format needs a kind of its own, which the format's row in
    `fedpca.rows.formats.files.ENDINGS` names.
    """

    TABLE = "a table or an array"
    CELLS = "cells"
    GENOTYPES = "genotypes"


def _as_given(option: str, given: Any) -> Any:
    return given


def _names(option: str, given: Any) -> tuple[str, ...]:
    """Return one name, several names, or None as a tuple of distinct names."""
    if given is None:
        return ()
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    names: tuple[Any, ...] = (given,) if is_one else tuple(given)
    for name in names:
        if not isinstance(name, str) or not name:
            raise InputError(f"{option}={given!r} must be a column's name or a list of names")
    return names


def _names_once(option: str, given: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_names(option, given)))


def _features(option: str, given: Any) -> tuple[str, ...] | None:
    """Return the names of the only features; unlike no choice, an empty choice is a mistake."""
    if given is None:
        return None
    names = distinct_names(_names(option, given))
    if not names:
        raise InputError("columns is empty; name at least one column")
    return names


def _name(option: str, given: Any) -> str | None:
    if given is not None and (not isinstance(given, str) or not given):
        raise InputError(f"{option}={given!r} must be a name, as a string that is not empty")
    return given


def _target_sum(option: str, given: Any) -> float:
    """Return the sum for each cell, which is `TARGET_SUM` for True, and zero for none."""
    target = TARGET_SUM if given is True else given or 0.0
    if not isinstance(target, Real) or not isfinite(target) or target < 0:
        raise InputError(
            f"{option}={given!r} must be True, False, or the sum of each cell's values before the "
            "logarithm, such as 1e4"
        )
    return float(target)


def _weights(option: str, given: Any) -> Any:
    """Return the name of a column of weights, or a copy of the weights themselves."""
    return given if given is None or isinstance(given, str) else as_numbers(given)


def option(
    default: Any,
    help: str,
    *,
    check: OptionCheck = _as_given,
    shell: Any = str | None,
    metavar: str | None = None,
    in_python: str = "",
    refused_for: Mapping[OptionKind, str] | None = None,
    word: str | None = None,
) -> Any:
    """Declare an option of a reading.

    Parameters
    ----------
    default : object
        The value that leaves the rows as they are.
    help : str
        What the option does, for the shell and for the documentation of Python's functions.
    check : callable
        Returns the value to keep for a given one, or raises `InputError`.
    shell : type
        What the shell reads: ``str | None``, ``float | None``, ``Path | None``, or, for names that may
        be repeated or separated by commas, ``list[str]``.
    metavar : str, optional
        How the shell shows the value.
    in_python : str, optional
        What Python's functions accept besides; a part of their documentation.
    refused_for : dict, optional
        For each kind of rows to which the option does not apply, the reason and the way out.
    word : str, optional
        The word for the option in the fingerprint of rows, by default its name. It is empty if the
        option does not change the rows, or if the state of a file tells of the change.
    """
    how = {"help": help, "check": check, "shell": shell, "metavar": metavar, "word": word}
    more = {"in_python": in_python, "refused_for": refused_for or {}}
    return field(default=default, metadata={**how, **more})


def _only(kind: OptionKind, reason: str) -> dict[OptionKind, str]:
    return {other: reason for other in OptionKind if other is not kind}


_ONLY_CELLS = _only(
    OptionKind.CELLS,
    "only AnnData objects and .h5ad files have layers, marked genes, and cells to normalize; leave the "
    "option out",
)
_ONLY_GENOTYPES = _only(
    OptionKind.GENOTYPES,
    "keep and extract require one .bed file for each site; omit them for other rows",
)


def _not_genotypes(what: str) -> dict[OptionKind, str]:
    reason = f"genotypes are multiplied in their packed form, and take no {what}"
    return {OptionKind.GENOTYPES: f"{reason}; omit it, or choose samples with keep instead"}


@dataclass(frozen=True, eq=False)
class Reading:
    """How a site's rows are read.

    `fedpca.Site`, `Summary.of`, and `Federation.dask` take the options by name. In the shell, every
    command that reads rows has them, with hyphens for underscores.

    To add an option, add a field here, and use its value where rows are opened.
    """

    panel: ClassVar[str] = "How rows are read"  # the heading of the options in the shell

    drop: tuple[str, ...] = option(
        (),
        "Column that is not a feature, or several columns: NAME,NAME; may be repeated.",
        in_python="A name or a list of names, as for columns and id.",
        check=_names,
        shell=list[str],
    )
    columns: tuple[str, ...] | None = option(
        None,
        "Column that is a feature; columns that you do not name are then left out.",
        check=_features,
        shell=list[str],
    )
    id: tuple[str, ...] = option(
        (),
        "Column that identifies the rows, is not a feature, and never leaves the site.",
        check=_names_once,
        shell=list[str],
        refused_for={
            OptionKind.GENOTYPES: "the .fam file already identifies the samples; omit the option id"
        },
    )
    weight: Any = option(
        None,
        "Column with the weight of each row, which is then not a feature. A row with weight w counts "
        "as w equal rows.",
        check=_weights,
        in_python="Also an array with the weights.",
        refused_for=_not_genotypes("weight"),
        word="",
    )
    layer: str | None = option(
        None,
        "Layer of an AnnData object or .h5ad file that holds the values; by default, X.",
        check=_name,
        refused_for=_ONLY_CELLS,
    )
    mask_var: str | None = option(
        None,
        "Column of var in an AnnData object or .h5ad file that marks the genes to use, such as "
        "highly_variable. All sites must use the same genes.",
        check=_name,
        metavar="COLUMN",
        refused_for=_ONLY_CELLS,
        word="genes marked",
    )
    log_normalize: float = option(
        0.0,
        "Normalize the counts of each cell, over all its genes, to this sum, such as 10000, and "
        "take log(1 + x). All sites must use the same sum.",
        check=_target_sum,
        shell=float | None,
        metavar="SUM",
        in_python="True stands for 10000.",
        refused_for=_ONLY_CELLS,
        word="cells log-normalized to",
    )
    keep: Any = option(
        None,
        "File with the samples to use, as for plink's --keep; for genotypes (.bed).",
        shell=Path | None,
        in_python="Also a list of sample ids.",
        refused_for=_ONLY_GENOTYPES,
        word="",
    )
    extract: Any = option(
        None,
        "File with the variants to use, as for plink's --extract; for genotypes.",
        shell=Path | None,
        in_python="Also a list of variant ids.",
        refused_for=_ONLY_GENOTYPES,
        word="",
    )
    device: str | None = option(
        None,
        "Multiply the rows on this device: cuda, cuda:1, or cpu. Requires PyTorch or CuPy. Rows stay "
        "there if they fit in half of the device's free memory.",
        metavar="NAME",
        refused_for=_not_genotypes("device"),
        word="",
    )
    precision: str | None = option(
        None,
        "Precision in which the device computes A'A: float64 (the default), or float32 or tf32, which "
        "are many times faster on most GPUs, but fewer components are then certain.",
        metavar="DTYPE",
        refused_for=_not_genotypes("precision"),
        word="",
    )
    query: str | None = option(
        None,
        "SQL query that returns the rows of a database. With an ORDER BY, a restarted site can "
        "continue its run.",
        metavar="SQL",
        in_python="The source is then a database; see `Site.query`.",
        word="",
    )
    # whether columns and log_normalize are those of a fitted model: rows without column names are
    # then accepted in the model's order, and rows that are not cells as normalized already
    of_model: bool = False

    def __post_init__(self) -> None:
        for each in options():
            checked = each.metadata["check"](each.name, getattr(self, each.name))
            object.__setattr__(self, each.name, checked)
        named = {*self.drop, *self.id}
        both = [name for name in self.columns or () if name in named]
        if both:
            raise InputError(
                f"{some_of(both)}: listed in columns and also in drop or id; list each column once"
            )
        if isinstance(self.weight, str) and self.weight in named:
            raise InputError(
                f"column {self.weight} is listed in drop or id, so it cannot have another use; remove "
                "it there"
            )

    @classmethod
    def typed(cls, texts: Mapping[str, Any]) -> Reading:
        """Return the reading that somebody typed, in a shell or in the settings of a node.

        Each value is a text, or a list of texts for an option that may be repeated. A text may list
        names separated by commas; a name with a comma must be in quotes.
        """
        known = {each.name: each.metadata["shell"] for each in options()}
        given = {name: _parsed(name, text, known[name]) for name, text in texts.items()}
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def given(self) -> dict[str, Any]:
        """Return the options whose values are not the defaults."""
        pairs = ((each, getattr(self, each.name)) for each in options())
        return {
            each.name: value
            for each, value in pairs
            if not (isinstance(value, type(each.default)) and value == each.default)
        }

    def in_words(self) -> str:
        """Return the choice as a short phrase, which is empty if all rows are read as they are."""
        words = {each.name: _word(each) for each in options()}
        parts = [(words[name], _text(value)) for name, value in self.given.items() if words[name]]
        return "; ".join(f"{word} {text}" for word, text in parts)

    def refuse_for(self, kind: OptionKind) -> None:
        """Refuse an option that does not apply to this kind of rows."""
        given = self.given
        for each in options():
            reason = each.metadata["refused_for"].get(kind)
            if reason is None or each.name not in given:
                continue
            if each.name == "log_normalize" and self.of_model:
                continue  # rows from another source, such as an array, are normalized already
            raise InputError(f"{_word(each) or each.name}: {reason}")

    @property
    def by_position(self) -> bool:
        """Return whether rows without column names are accepted, with columns in the right order."""
        return self.of_model and self.columns is not None

    @property
    def used_columns(self) -> tuple[str, ...] | None:
        """Return the only columns that are read as numbers, or None for all that are not left out."""
        if self.columns is None or not isinstance(self.weight, str):
            return self.columns
        return tuple(dict.fromkeys([*self.columns, self.weight]))

    def features_among(self, names: Sequence[str], index: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the columns that are features or weights; refuse a choice that lists other columns.

        ``index`` names columns that are features only if the choice lists them.
        """
        known = set(names)
        missing = [name for name in self._listed if name not in known]
        if missing:
            raise InputError(
                f"there is no column {some_of(missing)}; the columns are {some_of(names, most=10)}"
            )
        if self.used_columns is not None:
            return self.used_columns
        left_out = {*self.drop, *self.id, *index}
        features = tuple(name for name in names if name not in left_out)
        if names and not features:
            raise InputError("no column is left as a feature; drop fewer columns")
        return features

    def used_among(self, names: Sequence[str]) -> list[str]:
        """Return the columns that are features, weights, or ids."""
        features = self.features_among(names)
        return [*features, *self.id]

    def check_unnamed(self) -> None:
        """Refuse a choice for rows whose columns have no names."""
        listed = self.id if self.by_position else self._listed
        if listed:
            raise InputError(
                f"the columns have no names, so there is no column {some_of(listed)}; use a file or a "
                "data frame with column names"
            )

    @property
    def _listed(self) -> tuple[str, ...]:
        return (*self.drop, *(self.used_columns or ()), *self.id)


def options() -> Iterator[Field[Any]]:
    """Yield the fields that are options, in the order in which they are declared."""
    return (each for each in fields(Reading) if "help" in each.metadata)


def _described(kind: type[Reading]) -> None:
    """Add the help text of each option to the documentation of the class."""
    texts = [" ".join([each.metadata["help"], each.metadata["in_python"]]) for each in options()]
    entries = [
        f"    {each.name}\n        {text.strip()}"
        for each, text in zip(options(), texts, strict=True)
    ]
    heading = "    Parameters\n    ----------"
    kind.__doc__ = "\n".join([f"{(kind.__doc__ or '').rstrip()}\n", heading, *entries])


_described(Reading)


def option_names() -> list[str]:
    """Return the names of the options."""
    return [each.name for each in options()]


AS_STORED = Reading()


def reading_of(reading: Reading | None, how: Mapping[str, Any]) -> Reading:
    """Return a reading that the caller passed as a whole or by its options."""
    if reading is not None and how:
        raise InputError(
            f"{some_of(list(how))}: options of a reading; put them into reading=, or omit reading="
        )
    return reading or (Reading(**how) if how else AS_STORED)  # shared, so that it is recognized


def shows_options(function: F) -> F:
    """Show the options of a reading in the signature of a function that takes them as ``**how``."""
    signature = inspect.signature(function)
    kept = list(signature.parameters.values())
    shown = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default)
        for each in options()
    ]
    is_all = kept[-1].name == HOW  # else there are other names in it, as in ``**options``
    parameters = [*kept[:-1], *shown, *([] if is_all else kept[-1:])]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def _word(each: Field[Any]) -> str:
    word = each.metadata["word"]
    return each.name if word is None else str(word)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:.17g}" if isinstance(value, float) else str(value)


def _parsed(name: str, text: Any, kind: Any) -> Any:
    """Return the value of an option that was typed as text, or as several texts with names."""
    if kind == list[str]:
        texts = [text] if isinstance(text, str) else text or []
        return [part for one in texts for part in _parts(one)] or None
    if not isinstance(text, str):
        return text
    if kind == float | None and text:
        try:
            return float(text)
        except ValueError:
            raise InputError(f"{name}={text!r} must be a number") from None
    return text or None


def _parts(text: str) -> list[str]:
    return next(csv.reader([text], skipinitialspace=True), [])
