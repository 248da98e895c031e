"""Arrow values as one line of JSON.

What JSON has no form for: dates and times become ISO 8601, decimals text, bytes base64, and a float that is not finite
null. Whole numbers keep all their digits.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from typing import Any

# Three characters that JSON allows in a string and `str.splitlines` takes for the end of a line.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def json_line(value: Any) -> str:
    """One line, without its end."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, default=plain)
    return text.translate(_LINE_ENDS)


def plain(value: Any) -> str:
    """A value that JSON has no form for, as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
