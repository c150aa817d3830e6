"""The table of `verify`: every corrected statement passes, and every printed fault is shown."""

import json
from dataclasses import asdict

from looped.theory.verify import FAULTS, table, verify


def test_verify_passes_and_shows_every_printed_fault():
    rows = verify()
    assert all(line.ok for line in rows), [line for line in rows if not line.ok]
    failing = [line for line in rows if line.printed.startswith("fails as printed")]
    assert len(failing) >= 20
    assert [json.loads(json.dumps(asdict(line))) for line in rows] == [asdict(line) for line in rows]
    text = table(rows)
    shown = {fault for fault in FAULTS if any(line.statement.endswith(fault) for line in failing)}
    assert {"rectangle", "start", "bias", "second key", "stray digit", "own digit", "signs", "lag"} <= shown
    assert {"stray step", "label bias", "label start"} <= shown
    assert {"first id", "bound", "first drift", "second drift", "no index shift"} <= shown
    assert text.count("\n") == len(rows)
