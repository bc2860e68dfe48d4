"""Records of runs and comparisons, as plain data (standard library only)."""

from trimtab.records.atomic import UNFINISHED, whole_file
from trimtab.records.checking import checked, shown
from trimtab.records.comparison import RESULTS, RUNS, Candidate, Cell, Comparison, Metric, Trial
from trimtab.records.events import (
    EVENTS,
    Checked,
    Evaluated,
    Event,
    EventLog,
    LayerSeries,
    Probed,
    Resumed,
    RunEnded,
    RunStarted,
    Trained,
    Verdict,
    encoded,
    last_step,
    read_events,
)
from trimtab.records.history import RENAMED_SETTINGS, History, find_runs
from trimtab.records.machine import machine, memory, usable_cores
from trimtab.records.run_numbers import RunNumbers, gap_at, run_numbers
from trimtab.records.smoothness import largest_smoothness, smoothness_by_multiple
from trimtab.records.sweep import STATES, GridCell, PredictedBoundary, Restart, State, Sweep, SweptAxis, is_sweep

__all__ = [
    "EVENTS",
    "RENAMED_SETTINGS",
    "RESULTS",
    "RUNS",
    "STATES",
    "UNFINISHED",
    "Candidate",
    "Cell",
    "Checked",
    "Comparison",
    "Evaluated",
    "Event",
    "EventLog",
    "GridCell",
    "History",
    "LayerSeries",
    "Metric",
    "PredictedBoundary",
    "Probed",
    "Restart",
    "Resumed",
    "RunEnded",
    "RunNumbers",
    "RunStarted",
    "State",
    "Sweep",
    "SweptAxis",
    "Trained",
    "Trial",
    "Verdict",
    "checked",
    "encoded",
    "find_runs",
    "gap_at",
    "is_sweep",
    "largest_smoothness",
    "last_step",
    "machine",
    "memory",
    "read_events",
    "run_numbers",
    "shown",
    "smoothness_by_multiple",
    "usable_cores",
    "whole_file",
]
