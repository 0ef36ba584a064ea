"""What a site lets itself be asked."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from fedpca.errors import FileError, InputError, PolicyRefused
from fedpca.message import Header
from fedpca.question import Question


@dataclass(frozen=True)
class Policy:
    """What a site lets itself be asked.

    Parameters
    ----------
    min_rows : int
        Fewest rows of its own with which the site takes part.
    min_sites : int
        Fewest sites over which its answers may be summed.
    gather : bool
        Whether the coordinator may see the site's own answer to a question about its rows.
    """

    min_rows: int = 0
    min_sites: int = 1
    gather: bool = True

    def __post_init__(self) -> None:
        for name, least in (("min_rows", 0), ("min_sites", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)} must be at least {least}")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """The policy in a TOML file of these names; what it leaves out is as above."""
        try:
            given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise FileError(f"{path} is not TOML: {error}") from None
        kinds = {field.name: type(field.default) for field in fields(cls)}
        for name, value in given.items():
            if name not in kinds:
                raise InputError(f"{path}: no rule {name!r}; a policy has {', '.join(kinds)}")
            if type(value) is not kinds[name]:
                raise InputError(f"{path}: {name} = {value!r} must be of {kinds[name].__name__}")
        return cls(**given)

    def in_words(self) -> str:
        """What it asks for, as a phrase."""
        rules = []
        if self.min_rows:
            rules.append(f"at least {self.min_rows} rows here")
        if self.min_sites > 1:
            rules.append(f"sums over at least {self.min_sites} sites")
        if not self.gather:
            rules.append("no answer of this site alone")
        return ", ".join(rules) or "any question of fedpca"

    def check(self, question: Question, header: Header, n_rows: int | None) -> None:
        """Refuse what the policy forbids, naming the bound."""
        if header["verb"] not in ("sum", "gather"):
            raise PolicyRefused(f"{header['verb']!r} is not a way of asking that a policy allows")
        if not question.reads_rows:
            return
        if n_rows is not None and n_rows < self.min_rows:
            raise PolicyRefused(f"fewer rows here than the policy's {self.min_rows}")
        if header["verb"] == "gather" and not self.gather:
            raise PolicyRefused(f"the policy lets no single answer to {question.name!r} be seen")
        if header["verb"] == "sum" and header["n_sites"] < self.min_sites:
            raise PolicyRefused(
                f"a sum over {header['n_sites']} sites is below the policy's {self.min_sites}"
            )
