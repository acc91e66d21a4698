"""YAML of plain values: nothing in it is executed, and what is small in a file is small in memory.

Tags, anchors, aliases and merged keys are refused, as is a key that stands twice: YAML takes the last without a word.
"""

from typing import Any

import yaml
from yaml.constructor import ConstructorError

NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
KINDS = (*NUMBERS, "tag:yaml.org,2002:null", "tag:yaml.org,2002:bool")
"""What a value without quotes can be but text; dates are text here."""
DEEPEST = 20
"""Mappings and lists in one another, at most."""
LONGEST = 40
"""Characters of a number, at most."""


class _Loader(yaml.SafeLoader):
    """The safe loader of PyYAML without what only a hostile file needs."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own attribute)
        first: [(tag, form) for tag, form in known if tag in KINDS]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise refused("anchors and aliases are not read; write the value out", event)
        if getattr(event, "tag", None) is not None:
            raise refused(f"tags such as {event.tag[:40]!r} are not read; write the plain value", event)
        self.depth += 1
        if self.depth > DEEPEST:
            raise refused(f"nested more than {DEEPEST} deep", event)
        node = super().compose_node(parent, index)
        assert node is not None
        self.depth -= 1
        if node.tag in NUMBERS and len(node.value) > LONGEST:
            raise refused(f"a number of more than {LONGEST} characters", node)
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != self.DEFAULT_SCALAR_TAG:
                raise refused("a key that is no text", key)
            if key.value in seen:
                raise refused(f"the key {key.value[:40]!r} stands there twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes a value that is there twice twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump_plain(tree: Any) -> str:
    """A tree of plain values as `load_plain` reads it."""
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def refused(problem: str, where: Any) -> ConstructorError:
    """The error of a place in a YAML file."""
    return ConstructorError(None, None, problem, where.start_mark)


def load_plain(text: str) -> Any:
    """The one document of a text.

    Raises:
        yaml.YAMLError, ValueError: it is not YAML, or more than plain values.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
