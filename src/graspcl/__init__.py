"""Continual learning by rehearsal: GRASP and the policies it is compared with."""

__version__ = "0.1.0"
