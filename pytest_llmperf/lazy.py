"""numpy and scipy.special, imported at their first use: both take 0.3 s, and collecting a suite needs neither."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["numpy", "special"]

if TYPE_CHECKING:
    import numpy
    from scipy import special
else:
    class _Lazy:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the library has under this name
            return getattr(import_module(self._name), name)

    numpy, special = _Lazy("numpy"), _Lazy("scipy.special")
