"""The version and the folder of this package, in a module that imports no other module of the package."""

from pathlib import Path

VERSION = "0.1.0"
PACKAGE_DIR = Path(__file__).parent
