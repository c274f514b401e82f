"""The exception that this package raises for mistakes of the caller."""


class DynqError(Exception):
    """An error that the caller can correct. The message says what was wrong, what was expected and what to do."""
