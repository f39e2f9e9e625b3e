"""Compares an output with the output that a page prints."""

import json
import re

# Also a hash, or the token of a replica.
NUMBER = r"[0-9a-f]{16}\b|(\d[\d,]*(\.\d+)?(ms|us|s|m|h|d)?)+"


def like(expected, got, numbers=False):
    """`…` stands for any text, and a line of it for any lines. With `numbers`, every number equals every other."""
    def plain(text):
        text = re.sub(r"[ \t\r]+$", "", text, flags=re.M).strip("\n")
        return re.sub(" +", " ", re.sub(NUMBER, "#", text)) if numbers else text
    lines = []
    for line in plain(expected).split("\n"):
        lines.append("(?:.*\n)*?" if line.strip() == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n")
    return re.fullmatch("".join(lines), plain(got) + "\n") is not None


def contains(expected, got, numbers):
    """Whether the JSON value `got` has all fields and items of `expected`."""
    if isinstance(expected, dict):
        return isinstance(got, dict) and all(k in got and contains(v, got[k], numbers) for k, v in expected.items())
    if isinstance(expected, list):
        return isinstance(got, list) and all(any(contains(e, g, numbers) for g in got) for e in expected)
    if isinstance(expected, str) and isinstance(got, str):
        return like(expected, got, numbers)
    is_number = [type(value) in (int, float) for value in (expected, got)]
    return expected == got or (numbers and all(is_number))


def json_like(expected, got, numbers):
    try:
        return contains(json.loads(expected.replace("[…]", "[]")), json.loads(got), numbers)
    except ValueError:
        return False
