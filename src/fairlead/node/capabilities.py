"""The capabilities of this process, by name, from the mask in `/proc/self/status`."""

# Bits of include/uapi/linux/capability.h that some governor asks for.
NAMES = {1: "CAP_DAC_OVERRIDE", 12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN", 39: "CAP_BPF"}


def held(status: str) -> frozenset[str]:
    """The names of `NAMES` in the effective set; empty when the file does not say."""
    for line in status.split("\n"):
        key, _, value = line.partition(":")
        digits = value.strip()
        # int() alone would also take signs, underscores, 0x and other scripts' digits.
        if key == "CapEff" and digits and set(digits.lower()) <= set("0123456789abcdef"):
            mask = int(digits[-16:], 16)
            return frozenset(name for bit, name in NAMES.items() if mask >> bit & 1)
    return frozenset()
