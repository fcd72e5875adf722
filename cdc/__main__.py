"""`python -m cdc` is `tarantool-cdc`."""

import sys

from cdc.cli import main

sys.exit(main())
