"""``python -m drcil.cli`` is ``drcil``."""

import sys

from . import main

sys.exit(main())
