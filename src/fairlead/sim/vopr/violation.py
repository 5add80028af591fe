"""What a checker raises."""


class Violation(Exception):
    """A promise did not hold."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check, self.message = check, message
