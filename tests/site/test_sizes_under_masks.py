"""A site that is asked for the size of an answer again sends the same bytes, also after a restart."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.engines.base import EngineWrapper
from fedpca.engines.local import LocalEngine
from fedpca.protocol.message import encode
from support import asks_for_size


class _AsksTwice(EngineWrapper):
    """An engine that asks for each size twice, and keeps the bytes of both answers."""

    declares = True

    def __init__(self, engine_of):
        super().__init__(engine_of())
        self._engine_of, self.pairs = engine_of, []

    def ask(self, names, request, timeout):
        first = dict(self.engine.ask(names, request, timeout))
        if asks_for_size(request):
            self.engine = self._engine_of()
            second = dict(self.engine.ask(names, request, timeout))
            self.pairs += [(encode(first[name]), encode(second[name])) for name in names]
        yield from first.items()


@pytest.mark.parametrize("restarts", [False, True], ids=["alive", "restarted"])
def test_the_size_of_an_answer_has_the_same_bytes_when_it_is_asked_for_again(tmp_path, restarts):
    """With other random numbers under the same masks, the average would show the size itself."""
    rows = np.random.default_rng(0).normal(size=(3, 30, 4))
    names = ("s0", "s1", "s2")

    def sites():
        each = zip(names, rows, strict=True)
        return {n: Site(part, name=n, policy=Policy(), store=tmp_path) for n, part in each}

    kept = LocalEngine(sites())
    asking = _AsksTwice(lambda: LocalEngine(sites()) if restarts else kept)
    FederatedPCA(2, solver="covariance").fit(Federation(asking, secure=True))
    assert len(asking.pairs) >= len(names)
    for first, second in asking.pairs:
        assert first == second
