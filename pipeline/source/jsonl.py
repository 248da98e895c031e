"""JSON lines: one object per line, UTF-8. A byte-order mark, CRLF and blank lines are tolerated.

Reading only finds line ends; parsing is `parse_object`, done where there is a core free for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow as pa

from configs.errors import RowError, SourceError
from pipeline.source.chunk import LineChunk, is_blank

BOM = b"\xef\xbb\xbf"
WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
MAX_LINE_BYTES = 256 << 20
MAX_DEPTH = 64
"""Of lists and objects within each other. Arrow's own formats end at about 100."""


def read_lines(
    stream: pa.NativeFile, file: int, path: str, first_ordinal: int, chunk_bytes: int
) -> Iterator[LineChunk]:
    """Chunks of about `chunk_bytes` that end at line ends.

    Raises:
        SourceError: the file is no JSON lines at all (a JSON array, UTF-16, a line over 256 MiB).
    """
    line, ordinal = 1, first_ordinal
    for block in _blocks(stream, path, chunk_bytes):
        if line == 1:
            block = _without_bom(block, path)
        lines = block.split(b"\n")
        num_rows = sum(not is_blank(each) for each in lines)
        yield LineChunk(file, line, ordinal, num_rows, block)
        line += len(lines)
        ordinal += num_rows


def _blocks(stream: pa.NativeFile, path: str, chunk_bytes: int) -> Iterator[bytes]:
    """The file cut at line ends; each block comes without its last line end."""
    pending: list[bytes] = []
    while data := stream.read(chunk_bytes):
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            pending.append(data)
            if sum(map(len, pending)) > MAX_LINE_BYTES:
                raise SourceError(f"{path} has a line over {MAX_LINE_BYTES >> 20} MiB; is it a JSON lines file?")
            continue
        yield b"".join([*pending, head])
        pending = [tail] if tail else []
    if pending:
        yield b"".join(pending)


def _without_bom(block: bytes, path: str) -> bytes:
    if block.startswith(WIDE_BOMS):
        raise SourceError(f"{path} is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8")
    block = block.removeprefix(BOM)
    first = block.partition(b"\n")[0]
    if block.lstrip().startswith(b"[") and _begins_an_array(first):
        raise SourceError(f"{path} is one JSON array, not JSON lines; convert it first: jq -c '.[]' FILE > FILE.jsonl")
    return block


def _begins_an_array(line: bytes) -> bool:
    """Of objects, on this line or over many; a list of something else is one bad row."""
    try:
        value = json.loads(line)
    except ValueError:
        return True
    except RecursionError:
        return False
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def parse_object(line: bytes) -> dict[str, Any]:
    """One line as an object.

    Raises:
        RowError: `invalid_utf8`, `malformed_json` (also NaN and Infinity, which JSON lacks), `not_an_object`,
            `lone_surrogate` (half of an emoji, which no UTF-8 file can hold) or `nested_too_deeply`.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise RowError("invalid_utf8", f"the line is not UTF-8 (byte {error.start})", stage="plan") from None
    value = parse_value(text, "the line")
    if not isinstance(value, dict):
        raise RowError("not_an_object", f"the line is {_KINDS[type(value)]}, not an object", stage="plan")
    return value


def parse_value(text: str, what: str) -> Any:
    """A JSON text, which `what` names in errors, as the value that it holds.

    Raises:
        RowError: `malformed_json`, `lone_surrogate` or `nested_too_deeply`.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RowError(
            "malformed_json", f"{what} is not JSON: {error.msg} (column {error.colno})", stage="plan"
        ) from None
    except ValueError as error:
        raise RowError("malformed_json", f"{what} is not JSON: {error}", stage="plan") from None
    except RecursionError:
        raise _nested_too_deeply(what) from None
    if "\\u" in text:
        _refuse_surrogates(value, what)
    if text.count("[") + text.count("{") > MAX_DEPTH and depth(value) > MAX_DEPTH:
        raise _nested_too_deeply(what)
    return value


def _nested_too_deeply(what: str) -> RowError:
    return RowError("nested_too_deeply", f"{what} nests more than {MAX_DEPTH} levels", stage="plan")


def depth(value: Any) -> int:
    """How many lists and objects lie within each other; no recursion, since that is what too many of them break."""
    levels = 0
    inside = [value]
    while inside := [each for each in inside if isinstance(each, dict | list)]:
        levels += 1
        inside = [child for each in inside for child in (each.values() if isinstance(each, dict) else each)]
    return levels


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_KINDS = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}


def _refuse_surrogates(value: Any, what: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RowError(
            "lone_surrogate",
            f"{what} holds half of a surrogate pair (U+{ord(error.object[error.start]):04X}), cut text perhaps",
            stage="plan",
        ) from None
