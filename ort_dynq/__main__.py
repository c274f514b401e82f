"""The program ``ort-dynq``, also ``python -m ort_dynq``: the command line, whose imports can be interrupted, too."""

import sys

_INTERRUPTED = 130  # cli.command has it, too, but is not imported yet


def main() -> int:
    """Runs the command line and returns its exit status."""
    try:
        from .cli import main

        return main()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
