"""Runs trained by workers: `task.py` is what one does, `pool.py` the seam, `engines.py` chooses the kind of pool."""
