"""``python -m pytest_kvoffload`` is the ``kvoffload`` command."""

import sys

from pytest_kvoffload.cli import main

sys.exit(main())
