"""A container runtime for tests: `run` has the variables named by --env only, and PYTHONPATH is the image. `top` prints
the process ids in DOCKER_TOP below a heading.

A file DOCKER_LOG gets each command line. The image NAME is the folder NAME below DOCKER_IMAGES.
"""

import os
import sys
from pathlib import Path

VALUED = {"--name", "--gpus", "--network", "--ipc", "--volume", "--workdir", "--env"}

with Path(os.environ["DOCKER_LOG"]).open("a") as log:
    log.write(" ".join(sys.argv[1:]) + "\n")
if sys.argv[1] == "top":
    print("PID", *os.environ["DOCKER_TOP"].split(), sep="\n")
if sys.argv[1] == "run":
    words, env = sys.argv[2:], {"PATH": os.environ["PATH"]}
    while words[0].startswith("--"):
        option = words.pop(0)
        value = words.pop(0) if option in VALUED else ""
        if option == "--env":
            name, equals, given = value.partition("=")
            env[name] = given if equals else os.environ[name]
    image = Path(os.environ["DOCKER_IMAGES"], words.pop(0))
    if not image.is_dir():
        sys.exit(f"no such image: {image.name}")
    os.execvpe(sys.executable, [sys.executable, *words[1:]], env | {"PYTHONPATH": str(image)})
