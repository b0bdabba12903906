"""mlx-lm's name for the JSON-in-tags layout; converted models carry it in their configuration."""

from __future__ import annotations

from workers.engine.tool_parsers.hermes import FAMILY

__all__ = ["FAMILY"]
