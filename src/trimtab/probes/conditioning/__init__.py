"""How ill-conditioned layers are, before and after BNP."""

from trimtab.probes.conditioning.probe import Conditioning, ConditioningResult, LayerConditioning

__all__ = ["Conditioning", "ConditioningResult", "LayerConditioning"]
