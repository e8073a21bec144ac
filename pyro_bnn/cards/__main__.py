"""`python -m pyro_bnn.cards`: the zoo's table, and its numbers once more."""

from pyro_bnn.cards.make import main

raise SystemExit(main())
