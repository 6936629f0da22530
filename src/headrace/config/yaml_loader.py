"""YAML that cannot surprise: plain values only, no key twice, and aliases that neither hold themselves nor grow."""

from __future__ import annotations

from collections.abc import Hashable

import yaml

LARGEST_FILE_BYTES = 1024 * 1024
"""A configuration larger than this is a mistake; it is refused, also when it is so large only with its aliases."""

_TRUTH, _TEXT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:str"


class Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, which YAML readers otherwise let pass in silence.

    A key is a text whatever it looks like: `on` is no truth value there. An alias (`*name`) is looked at as if what it
    stands for were written in its place: a few lines of aliases of aliases can stand for gigabytes. The errors are
    yaml.MarkedYAMLError.
    """

    def compose_document(self) -> yaml.Node | None:
        """The document's tree, whose aliases are bounded."""
        node = super().compose_document()
        if node is not None:
            _spelt_out(node, {})
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        """A mapping whose keys differ."""
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen and key != "<<":
                raise yaml.MarkedYAMLError(problem=f"the key '{key}' is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
            if key_node.tag == _TRUTH:
                key_node.tag = _TEXT
        return super().construct_mapping(node, deep=deep)


def _spelt_out(node: yaml.Node, known: dict[yaml.Node, int | None]) -> int:
    """The size of `node` with its aliases spelt out, in characters and values; at most what it takes to write it so.

    `known`: the sizes of the nodes seen so far; None: of one that is being looked at.
    """
    if node in known:
        size = known[node]
        if size is None:
            raise _refused(node, "an alias (*name) stands within what it is the name of")
        return size
    known[node] = None
    if isinstance(node, yaml.ScalarNode):
        size = max(1, len(node.value))
    else:
        size = 1
        for part in node.value:
            for below in part if isinstance(part, tuple) else (part,):
                size += _spelt_out(below, known)
    if size > LARGEST_FILE_BYTES:
        raise _refused(node, f"with its aliases spelt out, this is larger than {LARGEST_FILE_BYTES} bytes")
    known[node] = size
    return size


def _refused(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
