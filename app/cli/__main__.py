"""`python -m app.cli`: how `feedback up` starts its children, whatever the console script's place is."""

import sys

from app.cli import main

sys.exit(main())
