"""What happened, as plain data (standard library only)."""

from trimtab.records.comparison import Cell, Comparison
from trimtab.records.events import (
    Evaluated,
    Event,
    EventLog,
    Resumed,
    RunEnded,
    RunStarted,
    Trained,
    Verdict,
    read_events,
)
from trimtab.records.machine import machine, usable_cores

__all__ = [
    "Cell",
    "Comparison",
    "Evaluated",
    "Event",
    "EventLog",
    "Resumed",
    "RunEnded",
    "RunStarted",
    "Trained",
    "Verdict",
    "machine",
    "read_events",
    "usable_cores",
]
