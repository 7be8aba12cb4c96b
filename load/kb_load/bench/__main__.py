"""`python -m kb_load.bench NAME`."""

import sys

from kb_load.bench import main

if __name__ == "__main__":
    sys.exit(main())
