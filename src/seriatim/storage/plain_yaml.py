"""YAML of plain values: nothing in it is executed, and what is small in a file is small in memory.

Tags, anchors, aliases and merged keys are refused, as is a key that stands twice: YAML takes the last without a word.

Numbers are decimal, as a person writes them and as YAML 1.2 has them. PyYAML implements YAML 1.1, in which ``010`` is
8, ``1:30`` is 90, and ``yes``, ``no``, ``on`` and ``off`` are truth values; here ``010`` is 10 and the rest is text.
"""

import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError

INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
NUMBERS = (INT, FLOAT)
DIGITS = "-+0123456789"
SCALARS = (
    (INT, r"[-+]?[0-9]+", DIGITS),
    (FLOAT, r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+", DIGITS + "."),
    (FLOAT, r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
)
"""What a value without quotes can be other than text: its tag, its form, and its possible first characters."""
DEEPEST = 20
"""Mappings and lists in one another, at most."""
LONGEST = 40
"""Characters of a number, at most."""


class _Loader(yaml.SafeLoader):
    """The safe loader of PyYAML without what only a hostile file needs."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own attribute)
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

    def construct_decimal(self, node: Any) -> int:
        """PyYAML's own method reads leading zeros as octal."""
        return int(node.value)


class _Dumper(yaml.SafeDumper):
    """Writes a value that is there twice twice, and quotes text that any version of YAML could take for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.add_constructor(INT, _Loader.construct_decimal)
for _tag, _form, _first in SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(f"(?:{_form})$"), list(_first))


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
