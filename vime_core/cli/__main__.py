"""`python -m vime_core.cli` is `vime`."""

import sys

from vime_core.cli.app import main

sys.exit(main())
