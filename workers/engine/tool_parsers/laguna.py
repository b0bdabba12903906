"""Laguna writes calls as GLM does; its converted models carry this name in their configuration."""

from __future__ import annotations

from workers.engine.tool_parsers.glm47 import FAMILY

__all__ = ["FAMILY"]
