"""Between `contracts.headrace_pb2` messages and the plain values of the JSON schema."""

from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message


@lru_cache(maxsize=64)
def _fields(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    return tuple(descriptor.fields)


def plain(message: Message) -> dict[str, Any]:
    """Field names and values, nested; an optional field that is absent stays absent."""
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in _fields(message.DESCRIPTOR)
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    if field.message_type.GetOptions().map_entry:
        return dict(value)
    return [plain(each) for each in value] if field.is_repeated else plain(value)
