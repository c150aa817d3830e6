"""Run the command line: `python -m looped`."""

import sys

from looped.cli.main import main

sys.exit(main())
