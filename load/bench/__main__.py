"""`python -m bench NAME`."""

import sys

from bench import main

if __name__ == "__main__":
    sys.exit(main())
