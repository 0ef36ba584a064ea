"""A message that is larger than it may be is refused, however it is wrapped."""

from __future__ import annotations

import json

import numpy as np
import pytest
from flwr.app import Array
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)

from fedpca.engines.flower import envelope as wire
from fedpca.errors import MessageError

LIMIT = 20 << 20


class Shelf:
    """Objects of a message, as a server hands them out; it counts what was taken."""

    def __init__(self, message):
        objects = get_all_nested_objects(message)
        self.contents = {key: item.deflate() for key, item in objects.items()}
        self.n_bytes, self.confirmed = 0, []

    def PullObject(self, request):
        content = self.contents[request.object_id]
        self.n_bytes += len(content)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()


def fetch(shelf, tree):
    return wire.Incoming(shelf, Node(node_id=1), 2, tree, LIMIT).fetch()


def message_of(data):
    return wire.message_to(1, 2, wire.wrap(data))


@pytest.mark.parametrize("size", [0, 100, 5 << 20, LIMIT])
@pytest.mark.parametrize("make", [bytes, np.random.default_rng(0).bytes], ids=["zeros", "random"])
def test_a_message_of_any_size_up_to_the_limit_is_had(size, make):
    message = message_of(make(size))
    shelf = Shelf(message)
    assert len(wire.unwrap(fetch(shelf, get_object_tree(message)))) == size


def test_no_more_is_fetched_once_there_is_too_much():
    message = message_of(np.random.default_rng(0).bytes(3 * LIMIT))
    shelf, tree = Shelf(message), get_object_tree(message)
    with pytest.raises(MessageError, match="exceeds its limit of 21,037,056 bytes"):
        fetch(shelf, tree)
    assert LIMIT < shelf.n_bytes < LIMIT + (6 << 20)
    assert shelf.confirmed == [tree.object_id]  # the server may forget it


def test_a_piece_that_occurs_too_often_is_not_put_together():
    message = message_of(bytes(3 * LIMIT))  # twelve times the same piece
    shelf = Shelf(message)
    with pytest.raises(MessageError, match=r"exceeds its limit of .* bytes"):
        fetch(shelf, get_object_tree(message))
    assert shelf.n_bytes < 6 << 20


def test_an_array_of_arrays_is_refused():
    inner = Array("uint8", (1 << 20,), "fedpca", bytes(1 << 20))
    own = {"dtype": "uint8", "shape": [1], "stype": "fedpca", "arraychunk_ids": [0] * 1000}
    body = json.dumps(own).encode()
    outer = b"Array %b %d\0%b" % (inner.object_id.encode(), len(body), body)
    tree = ObjectTree(object_id=get_object_id(outer), children=[get_object_tree(inner)])
    shelf = Shelf(inner)
    shelf.contents[tree.object_id] = outer
    with pytest.raises(MessageError, match="this is not a fedpca message: TypeError"):
        fetch(shelf, tree)
