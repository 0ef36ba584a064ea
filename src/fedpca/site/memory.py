"""Keep what a site must remember between the questions of a run, and save it to a file.

Memory is a dict of named arrays, so that it can be saved and outlive the process. Questions keep
dataclasses in it: `remember` writes each field as an array, and `recall` returns the dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import InputError, MessageError
from fedpca.protocol.message import Message, compose, decode, encode
from fedpca.storage import atomic

T = TypeVar("T")

MEMORY_GONE = "if this resumes a run, the site's memory is gone: start it with a new journal"
ROWS_CHANGED = "the rows changed since the run began; start it with a new journal"
_SCALAR_TYPES = {"float": float, "int": int, "bool": bool}


def remember(memory: MutableMapping[str, Array], value: Any) -> None:
    """Keep a dataclass of arrays and numbers; fields that are None are left out."""
    for field in fields(value):
        content, key = getattr(value, field.name), _key(type(value), field.name)
        memory.pop(key, None)
        if content is not None:
            array = np.asarray(content)
            memory[key] = array.astype(np.uint8) if array.dtype == bool else array


def remembers(memory: Mapping[str, Array], kind: type) -> bool:
    """Return whether memory holds a dataclass of this kind."""
    return any(_key(kind, field.name) in memory for field in fields(kind))


def recall(memory: Mapping[str, Array], kind: type[T]) -> T:
    """Return the dataclass of this kind that an earlier question kept; raise an error if none did."""
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        array = memory.get(_key(kind, field.name))
        if array is not None:
            scalar = _SCALAR_TYPES.get(str(field.type).removesuffix(" | None"))
            values[field.name] = array if scalar is None else scalar(array)
        elif field.default is MISSING:
            raise MessageError(
                f"this question needs the {kind.__name__} of an earlier one, which the site does not "
                f"have; {MEMORY_GONE}"
            )
    return kind(**values)


def _key(kind: type, name: str) -> str:
    return f"{kind.__name__}.{name}"


@dataclass(frozen=True)
class Saved:
    """The contents of a memory file: the last round that wrote memory, its answer, and the memory."""

    round: int
    reply: Message
    memory: Arrays


@dataclass(frozen=True)
class MemoryFile:
    """The file that keeps one site's memory when its process ends."""

    path: Path

    def save(self, run: str, rows: str, saved: Saved) -> None:
        """Write the memory of a run, whole or not at all; ``rows`` is the fingerprint of the rows."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        header = {"run": run, "round": saved.round, "rows": rows}
        arrays = {"reply": np.frombuffer(encode(saved.reply), np.uint8)}
        arrays |= {f"memory/{name}": array for name, array in saved.memory.items()}
        with atomic.writing(self.path, private=True) as path:
            path.write_bytes(encode(compose(header, arrays, limit=None)))

    def load(self, run: str, rows: str) -> Saved | None:
        """Read the memory of a run; return None if the file has none of that run."""
        if not self.path.exists():
            return None
        try:
            message = decode(self.path.read_bytes(), limit=None)
        except MessageError as error:
            raise InputError(
                f"the memory in {self.path.name} is damaged ({error}); start with a new journal"
            ) from None
        if message.header["run"] != run:
            return None
        if message.header["rows"] != rows:
            raise InputError(ROWS_CHANGED)
        reply = decode(message.arrays.pop("reply").tobytes())
        memory = {name.removeprefix("memory/"): array for name, array in message.arrays.items()}
        return Saved(message.header["round"], reply, memory)
