"""The library httpx, imported at its first use: the import takes 0.1 s, and collecting a suite needs no httpx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from httpx import *  # noqa: F403
else:
    def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever httpx has under this name
        import httpx

        return getattr(httpx, name)
