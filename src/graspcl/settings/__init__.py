"""The settings of a run: one tree of dataclasses, read from presets, TOML files and the command line."""

from graspcl.settings.config import Config, Part
from graspcl.settings.presets import preset
from graspcl.settings.read import change, from_plain

__all__ = ["Config", "Part", "change", "from_plain", "preset"]
