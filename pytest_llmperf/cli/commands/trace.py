"""Write recorded traffic without contents: llmperf trace anonymise IN OUT.

  llmperf trace anonymise IN OUT    the same lengths, times and shared blocks without contents, as Mooncake JSONL;
                                    of a ShareGPT file the same speakers and lengths with random words
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli.output import say
from pytest_llmperf.workload import anonymise

ARGUMENTS = {
    "action": {"choices": ("anonymise",), "help": "write a trace without contents and with other block ids"},
    "source": {"metavar": "IN", "help": "Mooncake, Bailian, BurstGPT, Azure, OpenTelemetry, a requests file or "
               "ShareGPT (….json)"},
    "target": {"type": Path, "metavar": "OUT", "help": "Mooncake JSONL, or Bailian or ShareGPT as the input; replaced "
               "where it exists"},
    "--unit": {"choices": ("s", "ms", "us", "ns"), "help": "of the times (default: that of the format)"},
    "--block": {"type": int, "metavar": "N", "help": "tokens of each block (default: that of the format)"},
}


def run(arguments: argparse.Namespace) -> int:
    count = anonymise(arguments.source, arguments.target, arguments.unit, arguments.block)
    say(f"{arguments.target}: {count:,} requests without contents")
    return 0
