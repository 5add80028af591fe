"""Sentences of decisions as people read them. Light: every command imports it."""

import re
from math import ceil

from fairlead.core.units import counted

_ONE = re.compile(r"\b1 GPUs\b")
_LONG = re.compile(r"(?<= to )\d{1,12}\.\d{3,}(?= would do)|(?<=from )\d{1,12}\.\d{3,}(?= to )")
_VALUE = re.compile(r"(?<=from )(None|False|True)(?= to )|(?<= to )(False|True)(?= would do)")


WAITS_FOR_IDLE = "waits for idle GPUs, which it may use without funding"
"""Of a run with `allowUnfunded` that no envelope pays for."""


def readable(message: str) -> str:
    """A refusal's message as people read it: `1 GPU`, hours with two digits, values as a manifest
    has them. In the outputs of `gpu.cover` and `gpu.fund` it has neither: these keep their bytes,
    or recorded decisions would no more replay."""
    message = _VALUE.sub(lambda value: value[0].lower(), _ONE.sub("1 GPU", message))
    return _LONG.sub(lambda hours: f"{ceil(float(hours[0]) * 100) / 100:.12g}", message)


def no_room(missing_gpus: int, gpus: int) -> str:
    """What finds no place, of how much; spares included."""
    whole, none = counted(gpus, "GPU"), "there are no free devices for"
    if gpus == 1:
        return f"{none} its {whole}"
    if missing_gpus == gpus:
        return f"{none} its {whole} together"
    return f"{none} the groups that hold {missing_gpus} of its {whole}"
