"""``python -m ort_dynq``: the command line."""

import sys

from .cli import main

sys.exit(main())
