"""Damage: bytes flipped, cut, doubled; values of plain data replaced, dropped, renamed, nested."""

import copy
import json
import random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 10**9, 2**31, 2**63 - 1, 2**63, 10**30, 1e308, -1e308, 1e-320, 0.5, -0.0),
    *("", "x", "../../evil", "/etc/passwd", "\x1b[31mred", "\u202egnp", "[/b]", "<script>", "a" * 3000, "\0", "\ud800"),
    *([], [0], [1] * 50, [[]], {}, {"name": "x"}, {"name": None}, {"class": "os:system"}, [1, "a", None], [10**9] * 3),
)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with one kind of damage."""
    n, kind = max(len(data), 1), rng.randrange(8)
    changed = bytearray(data)
    start = rng.randrange(n)
    length = min(rng.choice((1, 2, 8, 64, 1000)), n)
    if kind == 0 and data:
        changed[start] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del changed[start:]
    elif kind == 2:
        changed[start : start + length] = bytes(len(changed[start : start + length]))
    elif kind == 3:
        changed[start : start + length] = rng.randbytes(len(changed[start : start + length]))
    elif kind == 4:
        changed[start:start] = changed[start : start + length]
    elif kind == 5:
        del changed[start : start + length]
    elif kind == 6:
        changed += rng.randbytes(length)
    else:
        for _ in range(rng.randrange(1, 20)):
            changed[rng.randrange(n) % len(changed) if changed else 0 : 0] = b""
            if changed:
                changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _places(value: Any, at: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(inner)[:60]:
        at.append((value, key))
        _places(child, at)
    return at


def altered(value: Any, rng: random.Random) -> Any:
    """Return plain data with one to three values replaced, dropped, renamed, doubled or nested."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = _places(value, [])
        if not places:
            return rng.choice(HOSTILE)
        table, key = rng.choice(places)
        kind = rng.randrange(7)
        if kind <= 2:
            table[key] = copy.deepcopy(rng.choice(HOSTILE))
        elif kind == 3:
            del table[key]
        elif kind == 4 and isinstance(table, dict):
            table[rng.choice(("x", "name", "class", "", "members"))] = table.pop(key)
        elif kind == 5:
            other, its_key = rng.choice(places)
            table[key] = copy.deepcopy(other[its_key]) if its_key in other or isinstance(other, list) else None
        elif isinstance(table[key], (int, float)) and not isinstance(table[key], bool):
            table[key] = table[key] * rng.choice((-1, 0, 2, 1000, 10**6, 1e-9))
        else:
            for _ in range(rng.choice((1, 5, 100))):
                table[key] = [table[key]]
    return value


def as_json(value: Any, rng: random.Random) -> bytes:
    """Return JSON, sometimes with a word that it does not have or a key twice."""
    text = json.dumps(value)
    kind = rng.randrange(20)
    if kind == 0:
        text = text.replace("1", rng.choice(("NaN", "Infinity", "1e999", "9" * 5000)), 1)
    elif kind == 1 and text.startswith('{"'):
        text = text.replace("{", '{"format": 1, "format": 1, ', 1)
    elif kind == 2:
        text = "[" * rng.choice((10, 1000, 100_000)) + text
    return text.encode("utf-8", "surrogatepass")
