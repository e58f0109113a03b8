"""From the row of a file to a prompt, not yet tokenised. Every fault names file, row and key."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vime_core.data.config import FilesConfig
    from vime_core.data.rows import Place, Row

Messages = tuple[tuple[tuple[str, str], ...], ...]
"""Chat messages as items, hashable: equal prompts are tokenised once."""


@dataclass(frozen=True, slots=True)
class Record:
    """A checked row."""

    place: Place
    id: str
    """As the row gives it: rows may share one."""
    messages: Messages
    label: str
    data_source: str
    metadata: str
    """JSON object with what else the row held."""


def record_parser(first: Row, config: FilesConfig) -> Callable[[Row], Record]:
    """How the rows of a file are read, told from its first row: the DAPO schema, or plain rows.

    Raises:
        DataError: when the first row is neither.
    """
    if "reward_model" in first.values:
        return _parse_dapo
    if config.prompt_key in first.values:
        return lambda row: _parse_plain(row, config)
    keys = ", ".join(first.values) or "none"
    raise DataError(
        f"{first.place.path}: neither the DAPO schema (key reward_model) nor plain rows (data.prompt_key="
        f"{config.prompt_key}); its keys are: {keys}"
    )


def chat_of(row: Row, prompt_key: str) -> Messages:
    """The chat messages of a row in either form, whatever else the row lacks.

    Raises:
        DataError: when it has none.
    """
    key = "prompt" if "reward_model" in row.values else prompt_key
    return _messages(row, key, row.values.get(key))


def _parse_dapo(row: Row) -> Record:
    rest = dict(row.values)
    messages = _messages(row, "prompt", rest.pop("prompt", None))
    judge = rest["reward_model"] = dict(_mapping(row, "reward_model"))
    label = _label(row, "reward_model.ground_truth", judge.pop("ground_truth", None))
    source = _source(row, "data_source", rest.pop("data_source", None))
    index = _mapping(row, "extra_info").get("index") if rest.get("extra_info") is not None else None
    return Record(row.place, _identity(row, "extra_info.index", index), messages, label, source, _json(rest))


def _parse_plain(row: Row, config: FilesConfig) -> Record:
    rest = dict(row.values)
    messages = _messages(row, config.prompt_key, rest.pop(config.prompt_key, None))
    label = _label(row, config.label_key, rest.pop(config.label_key, None))
    source = _source(row, config.source_key, rest.pop(config.source_key, None))
    identity = _identity(row, config.id_key, rest.pop(config.id_key, None))
    return Record(row.place, identity, messages, label, source, _json(rest))


def _fault(row: Row, key: str, what: str) -> DataError:
    return DataError(f"{row.place}: key {key} {what}")


def _mapping(row: Row, key: str) -> dict[str, Any]:
    value = row.values.get(key)
    if not isinstance(value, dict):
        raise _fault(row, key, f"must be an object, not {_kind(value)}")
    return value


def _messages(row: Row, key: str, value: Any) -> Messages:
    if value is None:
        raise _fault(row, key, "is missing")
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise _fault(row, key, f"must be text or a list of chat messages, not {_kind(value)}")
    if not value:
        raise _fault(row, key, "is an empty list; a prompt needs at least one message")
    messages = tuple(_message(row, f"{key}[{i}]", message) for i, message in enumerate(value))
    if not dict(messages[-1])["content"].strip():
        raise _fault(row, key, "is empty")
    return messages


def _message(row: Row, key: str, value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise _fault(row, key, f"must be a message with role and content, not {_kind(value)}")
    for part in ("role", "content"):
        if value.get(part) is None:
            raise _fault(row, f"{key}.{part}", "is missing")
    # parquet gives every message all keys of the column: None is a key that this message does not have
    present = {name: text for name, text in value.items() if text is not None}
    for name, text in present.items():
        if not isinstance(text, str):
            raise _fault(row, f"{key}.{name}", f"must be text, not {_kind(text)}")
        _check_unicode(row, f"{key}.{name}", text)
    return tuple(present.items())


def _label(row: Row, key: str, value: Any) -> str:
    if value is None:
        raise _fault(row, key, "is missing; every row needs the answer that its responses are compared with")
    label = _text(row, key, value)
    if not label.strip():
        raise _fault(row, key, "is empty")
    return label


def _source(row: Row, key: str, value: Any) -> str:
    return "" if value is None else _text(row, key, value)


def _identity(row: Row, key: str, value: Any) -> str:
    return (_text(row, key, value) if value is not None else "") or f"{row.place.path.name}:{row.place.number}"


def _text(row: Row, key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _fault(row, key, f"must be text or a number, not {_kind(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise _fault(row, key, f"must be text or a finite number, not {value}")
    text = str(value)
    _check_unicode(row, key, text)
    return text


def _check_unicode(row: Row, key: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _fault(row, key, f"is not valid Unicode: {error.reason} at character {error.start}") from error


def _json(rest: dict[str, Any]) -> str:
    return json.dumps(rest, default=str)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
