"""How Hypothesis looks for counterexamples: always the same ones, and however long a busy machine takes over one.

`--hypothesis-profile=random` looks for others.
"""

# pytester takes back what its tests imported, and compiled modules load once in a process: these are there before.
import pandas  # noqa: F401
import scipy.stats  # noqa: F401
from hypothesis import HealthCheck, settings

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", settings.get_profile("steady"), derandomize=False)
settings.load_profile("steady")
