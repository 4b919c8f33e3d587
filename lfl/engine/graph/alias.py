"""The values of a recorded step that share memory."""

import operator

from torch import fx


def owner_of(node: fx.Node) -> fx.Node:
    """The value whose memory ``node`` is a view of; the node itself if it has memory of its own.

    An operation's schema declares which results may be views of its first argument. Parts of a tuple are taken for
    views of the tuple.
    """
    while node.op == "call_function":
        returns = getattr(getattr(node.target, "_schema", None), "returns", ())
        is_view = node.target is operator.getitem or any(result.alias_info is not None for result in returns)
        source = node.args[0] if node.args else None
        if not is_view or not isinstance(source, fx.Node):
            return node
        node = source
    return node
