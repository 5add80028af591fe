"""Sentences of decisions as people read them. Light: every command imports it."""

import re

from fairlead.core.units import counted

_ONE = re.compile(r"\b1 GPUs\b")


def singular(message: str) -> str:
    """A refusal's message as people read it. In the outputs of `gpu.cover` and `gpu.fund` it counts
    in plurals: these keep their bytes, or recorded decisions would no more replay."""
    return _ONE.sub("1 GPU", message)


def no_room(missing_gpus: int, gpus: int) -> str:
    """What finds no place, of how much; spares included."""
    whole, none = counted(gpus, "GPU"), "there are no free devices for"
    if gpus == 1:
        return f"{none} its {whole}"
    if missing_gpus == gpus:
        return f"{none} its {whole} together"
    return f"{none} the groups that hold {missing_gpus} of its {whole}"
