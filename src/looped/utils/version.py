"""The version, in a place that any module can import."""

__version__ = "0.1.0"
