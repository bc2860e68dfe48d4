"""`python -m trimtab.cli` is `trimtab`."""

import sys

from trimtab.cli import main

if __name__ == "__main__":
    sys.exit(main())
