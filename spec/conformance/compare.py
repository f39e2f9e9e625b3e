"""Compares values with the recording, whose placeholders stand for numbers that depend on the time."""

import re

UNITS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3_600, "DAY": 86_400, "WEEK": 604_800,
         "MONTH": 2_592_000, "YEAR": 31_536_000}
ABSENT = "(absent)"


class Difference(Exception):
    pass


def compare(what, recorded, received, seconds=range(1)):
    """Raises a `Difference` unless one of these Unix seconds explains every number that was received."""
    received = with_single_blanks(received)
    found = [difference(with_single_blanks(at_second(recorded, now)), received, "") for now in seconds]
    if all(found):
        raise Difference(f"{what}{found[0]}")


def at_second(recorded, now):
    """The recording with the values of its placeholders at this Unix second."""
    if isinstance(recorded, list):
        return [at_second(item, now) for item in recorded]
    if not isinstance(recorded, dict):
        return recorded
    if "seconds_until_window_end" in recorded:
        return str(until_window_end(recorded.get("unit"), now))
    filled = {}
    for key, value in recorded.items():
        if key == "durationUntilReset" and isinstance(value, dict):
            filled[key] = f"{until_window_end(recorded['currentLimit'].get('unit'), now)}s"
        else:
            filled[key] = at_second(value, now)
    return filled


def until_window_end(unit, now):
    length = UNITS.get(unit, 1)
    return length - now % length


def counter_name(name, now):
    """A counter's name with the start of the window in force at this Unix second."""
    return re.sub(r"\{window_start:(\w+)\}", lambda unit: str(now - now % UNITS[unit[1]]), name)


def with_single_blanks(answer):
    """The texts `limit` in dynamic metadata have one or two blanks at random."""
    if not isinstance(answer, dict) or not isinstance(answer.get("dynamicMetadata"), dict):
        return answer
    metadata = dict(answer["dynamicMetadata"])
    descriptors = metadata.get("descriptors")
    if isinstance(descriptors, list):
        metadata["descriptors"] = [
            each | {"limit": " ".join(each["limit"].split())} if isinstance(each, dict) and "limit" in each else each
            for each in descriptors]
    return answer | {"dynamicMetadata": metadata}


def difference(recorded, received, path):
    """The first difference, or None. Lists are ordered; 7 equals 7.0, and neither equals true."""
    if isinstance(recorded, dict) and isinstance(received, dict):
        names = list(recorded) + [name for name in received if name not in recorded]
        pairs = [(recorded.get(name, ABSENT), received.get(name, ABSENT), f"{path}.{name}") for name in names]
    elif isinstance(recorded, list) and isinstance(received, list) and len(recorded) == len(received):
        pairs = [(one, other, f"{path}[{at}]") for at, (one, other) in enumerate(zip(recorded, received))]
    elif recorded == received and isinstance(recorded, bool) == isinstance(received, bool):
        return None
    else:
        return f"{path} is {shown(received)} instead of {shown(recorded)}"
    return next(filter(None, (difference(*pair) for pair in pairs)), None)


def shown(value):
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "…"
