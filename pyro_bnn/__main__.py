"""`python -m pyro_bnn` is the command pyro-bnn."""

import sys

from pyro_bnn.cli import main

sys.exit(main())
