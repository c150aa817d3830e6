"""Break `looped` on purpose, and count what it does not survive.

Each module here is one class of faults. All of them drive the command line of a source tree that is given, never its
Python modules, so that the same faults can be put to any version. `python -m faults --help` says how.
"""
