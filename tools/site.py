"""Makes the site of the documentation in build/site: ``./dev docs --site``. A link to nothing fails."""

from __future__ import annotations

import subprocess
import sys

from tools.side_environment import ROOT, side_environment

if __name__ == "__main__":
    strict = ("-W", "--keep-going", "--fresh-env", "-q")
    folders = ("--doctree-dir", "build/site-cache", "docs", "build/site")
    command = [str(side_environment("site")), "-m", "sphinx", *strict, *folders]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)
