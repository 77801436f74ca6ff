"""`python -m octad.stages KIND --order URL ...`: a stage of a code package that holds no `jobs/`."""

import sys

from octad.stages import main

raise SystemExit(main(sys.argv[1], sys.argv[2:]))
