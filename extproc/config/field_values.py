"""Values of a YAML as the fields of Envoy's messages read them, by each field's type on the wire.

It reads as generously as Envoy does (measured on Envoy 1.40): numbers and booleans may be quoted, an enum's name may be
in any case, a single value may stand for a list of one, and a null counts as absent. What Envoy refuses is refused
here. Knows how betterproto2 describes a field, and no message of Envoy's.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, TypeVar

import betterproto2
from betterproto2 import FieldMetadata

from extproc.config.nodes import snake_case

M = TypeVar("M", bound=betterproto2.Message)

# What reading raises: ValueError is ours, and all of them betterproto2's.
_REFUSALS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)

_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?|NaN|-?Infinity", re.ASCII)
_WORDS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
_OWN_FORM: Final = ".google.protobuf"  # messages there have a form of their own in YAML: durations, Structs


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, as far as values must fit it."""

    name: str  # of the attribute
    read: Callable[[Any], Any]  # raises ValueError and what betterproto2 raises
    many: bool
    keyed: bool  # a map
    group: str | None  # fields of a group exclude each other
    message: type[betterproto2.Message] | None  # whose keys are fields


@cache
def fields_of(kind: type[betterproto2.Message]) -> Mapping[str, Field]:
    """The fields of a message as Envoy writes them."""
    hints = typing.get_type_hints(kind)
    return {field.name.rstrip("_"): _field(field, hints[field.name]) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]


def message_of(kind: type[M], values: Any) -> M:
    """The values as a message; unknown keys are left out.

    Raises ValueError for a value that does not fit.
    """
    if not isinstance(values, Mapping):
        raise ValueError("a mapping is needed here")
    fields, read, groups = fields_of(kind), dict[str, Any](), dict[str, str]()
    for key, value in values.items():
        field = fields.get(snake_case(key))
        if field is None or value is None:
            continue
        if field.group is not None and groups.setdefault(field.group, key) != key:
            raise ValueError(f"{key} and {groups[field.group]} exclude each other")
        try:
            read[field.name] = _value(field, value)
        except _REFUSALS as refusal:
            raise ValueError(f"{key}: {str(refusal) or type(refusal).__name__}") from refusal
    return kind(**read)


def _value(field: Field, value: Any) -> Any:
    if field.keyed:
        if not isinstance(value, Mapping):
            raise ValueError("a mapping is needed here")
        return {key: field.read(item) for key, item in value.items() if item is not None}
    if field.many:
        return [field.read(item) for item in (value if isinstance(value, list) else [value]) if item is not None]
    return field.read(value)


def _field(field: dataclasses.Field[Any], hint: object) -> Field:
    meta = FieldMetadata.get(field)
    keyed, many = meta.map_meta is not None, bool(meta.repeated)
    value = meta.map_meta[1] if meta.map_meta is not None else meta
    kind = next((part for part in reversed(_parts(hint)) if part is not type(None)), object)
    message = kind if issubclass(kind, betterproto2.Message) and _OWN_FORM not in kind.__module__ else None
    return Field(field.name, _reader(value, kind), many, keyed, meta.group, None if keyed else message)


def _reader(meta: FieldMetadata, kind: type) -> Callable[[Any], Any]:
    if meta.unwrap is not None:
        return partial(_unwrapped, meta.unwrap())
    if issubclass(kind, betterproto2.Enum):
        return partial(_enum, kind)
    if issubclass(kind, betterproto2.Message):
        return kind.from_dict if _OWN_FORM in kind.__module__ else partial(message_of, kind)
    return _READERS[meta.proto_type]


def _unwrapped(kind: type[betterproto2.Message], value: Any) -> Any:
    """A wrapper such as UInt32Value is written as what it wraps, or in full as `{value: 5}`."""
    if "value" not in fields_of(kind):
        return kind.from_dict(value).to_wrapped()  # type: ignore[attr-defined]  # Duration, Timestamp
    bare = value["value"] if isinstance(value, Mapping) and value.keys() == {"value"} else value
    return fields_of(kind)["value"].read(bare)


def _parts(hint: object) -> Sequence[type]:
    """The classes in a type such as `list[Message] | None`."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return (hint,)
    return [part for argument in typing.get_args(hint) for part in _parts(argument)]


def _enum(kind: type[betterproto2.Enum], value: Any) -> betterproto2.Enum:
    names = {name.upper(): member for name, member in kind.__members__.items()}
    names |= {name.upper(): kind(number) for name, number in kind.betterproto_renamed_proto_names_to_value().items()}
    if isinstance(value, str) and value.upper() in names:
        return names[value.upper()]
    try:
        return kind(_INT32(value))  # a number that we do not know may be a newer Envoy's
    except ValueError:
        raise ValueError(f"{value!r} is none of {', '.join(names)}") from None


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = _number(value)
        if not math.isfinite(number) or number != int(number) or not low <= number <= high:
            raise ValueError(f"{value!r} is no whole number from {low} to {high}")
        return int(number)

    return read


def _number(value: Any) -> int | float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value) if value.lstrip("-").isdecimal() else float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text; quote it")
    return value


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    raise ValueError(f"{value!r} is neither true nor false")


_INT32, _UINT32 = _integer(-(2**31), 2**31 - 1), _integer(0, 2**32 - 1)
_INT64, _UINT64 = _integer(-(2**63), 2**63 - 1), _integer(0, 2**64 - 1)
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    betterproto2.TYPE_BOOL: _boolean,
    betterproto2.TYPE_STRING: _text,
    betterproto2.TYPE_BYTES: _text,
    betterproto2.TYPE_FLOAT: _number,
    betterproto2.TYPE_DOUBLE: _number,
    **dict.fromkeys((betterproto2.TYPE_INT32, betterproto2.TYPE_SINT32, betterproto2.TYPE_SFIXED32), _INT32),
    **dict.fromkeys((betterproto2.TYPE_UINT32, betterproto2.TYPE_FIXED32), _UINT32),
    **dict.fromkeys((betterproto2.TYPE_INT64, betterproto2.TYPE_SINT64, betterproto2.TYPE_SFIXED64), _INT64),
    **dict.fromkeys((betterproto2.TYPE_UINT64, betterproto2.TYPE_FIXED64), _UINT64),
}
