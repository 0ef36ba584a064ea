"""An engine has every member of the contract, and an engine that wraps another has the other's."""

from __future__ import annotations

from functools import partial

import pytest

from fedpca import Federation
from fedpca.engines.base import ENGINE_FEATURES, Engine, EngineWrapper
from fedpca.errors import InputError
from fedpca.testing import ScriptedEngine

MEMBERS = sorted(name for name in vars(Engine) if not name.startswith("_"))
ARGUMENTS = {
    "ask": (["north"], "request", None),
    "ask_total": (["north"], "request", None),
    "hold": ("run",),
    "sign": (b"plan",),
}


class Bare(Engine):
    """An engine with only the members that every engine must have."""

    names = ("north", "south")

    def ask(self, names, request, timeout):
        yield from ()


def full():
    """Return an engine whose members are or return their own name."""
    engine = Bare()
    for member in MEMBERS:
        is_method = callable(getattr(Engine, member)) or member == "ask_total"
        own = partial(lambda name, *arguments: (name, arguments), member)
        setattr(engine, member, own if is_method else member)
    return engine


def value_of(engine, member):
    value = getattr(engine, member)
    return value(*ARGUMENTS.get(member, ())) if callable(value) else value


def test_an_engine_needs_only_names_and_ask():
    with pytest.raises(TypeError, match="ask"):
        type("Nothing", (Engine,), {"names": ("north",)})()
    assert {name: value_of(Bare(), name) for name in MEMBERS if name not in ("hold", "ask")} == {
        "names": ("north", "south"),
        "ask_total": None,
        "close": None,
        "sign": None,
        "declares": False,
        **{name: {} for name in ("fingerprints", "sites", "lacks", "absent", "keys", "proofs")},
    }
    with Bare().hold("run"):
        pass


@pytest.mark.parametrize("member", MEMBERS)
def test_a_wrapper_has_every_member_of_the_engine(member):
    engine = full()
    # answers that are added up on the way would pass the wrapper unseen
    expected = None if member == "ask_total" else value_of(engine, member)
    wrapper = EngineWrapper(engine)
    assert value_of(wrapper, member) == expected
    if member in ("keys", "proofs"):
        setattr(engine, member, {"north": "changed"})
        assert getattr(wrapper, member) == {"north": "changed"}


@pytest.mark.parametrize("feature", ENGINE_FEATURES)
@pytest.mark.parametrize("wrap", [lambda engine: engine, EngineWrapper, ScriptedEngine])
def test_a_federation_refuses_what_its_engine_lacks(feature, wrap, tmp_path):
    class Lacking(Bare):
        lacks = {feature: f"no {feature} here"}  # noqa: RUF012

    options = {"secure": {"secure": True}, "journal": {"journal": tmp_path / "j"}}
    with pytest.raises(InputError, match=f"no {feature} here"):
        Federation(wrap(Lacking()), **options.get(feature, {})).run(
            lambda fed, start: None, identity={"privacy": {}}
        )


@pytest.mark.parametrize("rows", [{"north": [[1.0]]}, [[1.0]], None, LookupError])
def test_a_federation_of_anything_but_an_engine_is_refused(rows):
    with pytest.raises(InputError, match="must be derived from"):
        Federation(rows)
