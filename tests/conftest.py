"""How Hypothesis looks for counterexamples: always the same ones, and however long a busy machine takes over one.

`--hypothesis-profile=random` looks for others.
"""

import numpy  # noqa: F401 - pytester takes back what a test imported, and numpy can be loaded once in a process
from hypothesis import HealthCheck, settings

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", settings.get_profile("steady"), derandomize=False)
settings.load_profile("steady")
