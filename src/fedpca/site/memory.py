"""Store what a site must remember between questions in a run, and save it to a file.

Memory is a dict of named arrays, so it can be saved and can outlive the process. Questions store
dataclasses in it: `remember` writes each field as an array, and `recall` rebuilds the dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import InputError, MessageError
from fedpca.protocol.message import Message, compose, decode, encode
from fedpca.site.store import MEMORY

T = TypeVar("T")

MEMORY_GONE = "if this run was resumed, the site's memory is gone; start over with a new journal"
ROWS_CHANGED = "the rows have changed since the run began; start over with a new journal"
_SCALAR_TYPES = {"float": float, "int": int, "bool": bool}


def remember(memory: MutableMapping[str, Array], value: Any) -> None:
    """Store a dataclass of arrays and numbers, omitting fields that are None."""
    kind: type = type(value)
    for name, key, _, _ in _fields_of(kind):
        content = getattr(value, name)
        memory.pop(key, None)
        if content is not None:
            array = np.asarray(content)
            if array.dtype == bool:
                if array.ndim:  # as numbers, a mask would select different elements
                    raise TypeError(
                        f"{key} is a mask, which memory cannot hold; store its indices instead"
                    )
                array = array.astype(np.uint8)
            memory[key] = array


def remembers(memory: Mapping[str, Array], kind: type) -> bool:
    """Return whether memory holds a dataclass of this type."""
    return any(key in memory for _, key, _, _ in _fields_of(kind))


def recall(memory: Mapping[str, Array], kind: type[T]) -> T:
    """Return the dataclass of this type that an earlier question stored; raise an error if none did."""
    values: dict[str, Any] = {}
    for name, key, scalar, is_required in _fields_of(kind):  # type: ignore[arg-type]
        array = memory.get(key)
        if array is not None:
            values[name] = array if scalar is None else scalar(array)
        elif is_required:
            raise MessageError(
                f"this question needs the {kind.__name__} that an earlier question stores, but the "
                f"site does not have it; {MEMORY_GONE}"
            )
    return kind(**values)


@cache
def _fields_of(kind: type) -> list[tuple[str, str, Callable[[Array], Any] | None, bool]]:
    """Return each field's name, its key in memory, its type if a number, and if it is required."""
    return [
        (
            field.name,
            _key(kind, field.name),
            _SCALAR_TYPES.get(str(field.type).removesuffix(" | None")),
            field.default is MISSING,
        )
        for field in fields(kind)
    ]


def _key(kind: type, name: str) -> str:
    return f"{kind.__name__}.{name}"


@dataclass(frozen=True)
class Checkpoint:
    """How far a site has come in a run; a copy of the site, or its next process, continues there."""

    run: str
    round: int  # the last round that was answered
    memory: Arrays
    reply: Message | None = None  # to that round, if it is kept

    def save(self, path: Path, rows: str) -> None:
        """Write the checkpoint; ``rows`` is the fingerprint of the rows."""
        assert self.reply is not None
        header = {"run": self.run, "round": self.round, "rows": rows}
        arrays = {"reply": np.frombuffer(encode(self.reply), np.uint8)}
        arrays |= {f"memory/{name}": array for name, array in self.memory.items()}
        MEMORY.write(path, compose(header, arrays, limit=None))

    @classmethod
    def load(cls, path: Path, run: str, rows: str) -> Checkpoint | None:
        """Return the checkpoint of a run, or None if the file holds none of that run."""
        found = MEMORY.read(path, lambda message: (message.header["rows"], cls._in(message)))
        if found is None or found[1].run != run:
            return None
        if found[0] != rows:
            raise InputError(ROWS_CHANGED)
        return found[1]

    @classmethod
    def _in(cls, message: Message) -> Checkpoint:
        arrays, header = dict(message.arrays), message.header
        reply = decode(arrays.pop("reply").tobytes())
        memory = {name.removeprefix("memory/"): array for name, array in arrays.items()}
        return cls(header["run"], header["round"], memory, reply)
