"""How long tests wait for what they are sure of."""

from __future__ import annotations

GUARD = 120.0
"""Seconds of the loop's clock or real ones after which what has not happened never will: the longest wait for anything
that takes milliseconds on an idle machine. No promise of a test: those are about what happens, and in which order."""
