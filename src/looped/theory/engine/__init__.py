"""The exact engine: runs a looped network in exact arithmetic, fast."""
