"""Edit distance and longest common subsequence."""

from looped.tasks.strings.task import EditDistance, LongestCommonSubsequence, StringPairs

__all__ = ["EditDistance", "LongestCommonSubsequence", "StringPairs"]
