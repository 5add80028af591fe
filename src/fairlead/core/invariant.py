"""The third kind of "no": a broken promise of our own, which stops the process."""


class InvariantBroken(Exception):  # noqa: N818 - it names what happened, as the documents do
    """A decision broke its own promise. A bug: no loop swallows it, the CLI exits with 70."""


def require(holds: bool, promise: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Stop unless `holds`. Always on: unlike `assert` it survives `python -O`."""
    if not holds:
        raise InvariantBroken(promise)
