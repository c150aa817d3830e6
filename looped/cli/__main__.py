"""`python -m looped.cli`."""

import sys

from looped.cli import main

sys.exit(main())
