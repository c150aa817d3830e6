"""The command line. `main.py` lists the verbs; each verb has a module of its own."""

COMPLETE = "--complete"
"""last word of a command line whose possible next words are wanted"""
