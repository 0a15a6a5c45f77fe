"""`python -m smolsum`, the same as the command `smolsum`."""

import sys

from smolsum.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
