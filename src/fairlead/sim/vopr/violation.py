"""What a checker raises."""


class Violation(BaseException):
    """A promise did not hold. No handler of ours makes a reply of it."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check, self.message = check, message
