"""Plotly's script as it stands in a page."""

from __future__ import annotations

import base64
import gzip
from functools import cache


@cache
def packed_script() -> str:
    """plotly.js, gzipped, in base64: 2 MB of the 5."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), compresslevel=6, mtime=0)).decode()
