"""JSON Schemas of everything that goes over the wire, made from the msgspec types."""

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from feedback.events import FeedbackDeleted, FeedbackPut, FeedbackRejected, FeedbackUnchanged
from feedback.model import Item
from feedback.requests import DeleteRequest, ListRequest, PutRequest
from feedback.results import (
    Absent,
    ItemList,
    NoteBlank,
    NoteTooLarge,
    SessionNotFound,
    TargetNotFound,
    VersionConflict,
)
from gateway.routes.remote import InternalError
from gateway.routes.rest import PutBody
from gateway.web.problems import Problem

Schema: TypeAlias = dict[str, Any]

_PREFIX = "#/components/schemas/"
_REJECTIONS = (SessionNotFound, TargetNotFound, VersionConflict, NoteBlank, NoteTooLarge)
_EVENTS = (FeedbackPut, FeedbackDeleted, FeedbackUnchanged, FeedbackRejected)
_TYPES: tuple[type[Struct], ...] = (
    Item,
    ItemList,
    Absent,
    PutBody,
    ListRequest,
    PutRequest,
    DeleteRequest,
    InternalError,
    Problem,
    *_REJECTIONS,
    *_EVENTS,
)


def ref(name: str) -> Schema:
    """A reference to one of the schemas."""
    return {"$ref": _PREFIX + name}


def schemas() -> dict[str, Schema]:
    """All schemas by name."""
    _, found = msgspec.json.schema_components(_TYPES, ref_template=_PREFIX + "{name}")
    for kind in _TYPES:
        _without_null(kind, found[kind.__name__])
    found["Event"] = _one_of(*(kind.__name__ for kind in _EVENTS))
    found["Rejection"] = _one_of(*(kind.__name__ for kind in _REJECTIONS))
    for verb, value in (("List", "ItemList"), ("Put", "Item"), ("Delete", "Absent")):
        found[f"{verb}Call"] = _call(verb)
        found[f"{verb}Answer"] = _answer(value)
    return found


def _without_null(kind: type[Struct], schema: Schema) -> None:
    """A member that is left out when there is none is never null either."""
    if not kind.__struct_config__.omit_defaults:
        return
    for field in msgspec.structs.fields(kind):
        if field.default is None:
            branches = schema["properties"][field.encode_name].pop("anyOf", [])
            schema["properties"][field.encode_name].pop("default", None)
            for branch in branches:
                if branch != {"type": "null"}:
                    schema["properties"][field.encode_name] |= branch


def _call(verb: str) -> Schema:
    """What is posted to one method of the remote contract."""
    members: dict[str, Schema] = {
        "type": {"const": "client-request"},
        "rpcId": {"type": ["string", "integer"]},
        "method": {"const": f"messageFeedback/{verb.lower()}"},
        "payload": _closed({"args": _closed({"request": ref(f"{verb}Request")})}),
    }
    return _closed(members)


def _answer(value: str) -> Schema:
    """What it answers: the contract's result, or why there is none."""
    succeeded = _closed({"ok": {"const": True}, "value": ref(value)})
    rejected = _closed({"ok": {"const": False}, "error": ref("Rejection")})
    answered = _closed({"ok": {"const": True}, "value": {"oneOf": [succeeded, rejected]}})
    failed = _closed({"ok": {"const": False}, "error": ref("InternalError")})
    members: dict[str, Schema] = {
        "type": {"const": "server-response"},
        "rpcId": {"type": ["string", "integer"]},
        "result": {"oneOf": [answered, failed]},
    }
    return _closed(members)


def _closed(properties: dict[str, Schema]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _one_of(*names: str) -> Schema:
    return {"oneOf": [ref(name) for name in names]}
