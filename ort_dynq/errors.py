"""The one exception that users are meant to catch."""


class DynqError(Exception):
    """A mistake that the caller can mend: its text says what was wrong, what was expected and what to do."""
