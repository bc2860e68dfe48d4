"""A model isolated from what is computed with it: it is run as often as one likes, and nothing of it changes."""

from trimtab.probes.isolation.model import IsolatedModel, Point

__all__ = ["IsolatedModel", "Point"]
