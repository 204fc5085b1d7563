"""``python -m benchmarks`` is ``make bench``."""

import sys

from .command import main

sys.exit(main())
