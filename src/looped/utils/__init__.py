"""Helpers with no knowledge of models or tasks: errors, files, signals, text."""
