"""torchaudio, hollow: imported, never used on a CPU."""

from sglang_plain_cpu import hollow

hollow.make(__name__, __version__="0.0.0")
