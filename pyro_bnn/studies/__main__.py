"""Write the gallery from a folder of outcomes: python -m pyro_bnn.studies docs/studies."""

import sys
from pathlib import Path

from pyro_bnn.studies.gallery import write_gallery

if __name__ == "__main__":
    page = write_gallery(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/studies"))
    sys.stdout.write(f"{page}\n")
