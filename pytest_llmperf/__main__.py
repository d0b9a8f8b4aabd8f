"""`python -m pytest_llmperf` is `llmperf`."""

import sys

from pytest_llmperf.cli import main

sys.exit(main())
