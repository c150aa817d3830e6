"""Countdown: reach a target from four numbers."""

from looped.tasks.countdown.task import Countdown

__all__ = ["Countdown"]
