"""Make the environment of the tests: python3 scripts/make_venv.py .venv"""

import subprocess
import sys


def main() -> None:
    if sys.version_info < (3, 11):
        sys.exit(f"Python ≥ 3.11 is needed, this is {sys.version.split()[0]}: run `make PYTHON=python3.11 …`.")
    made = subprocess.run([sys.executable, "-m", "venv", sys.argv[1]], check=False)
    if made.returncode:
        sys.exit("This Python cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv.")


if __name__ == "__main__":
    main()
