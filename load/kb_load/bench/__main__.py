"""`python -m kb_load.bench NAME`."""

import sys

from kb_load.bench import main

sys.exit(main())
