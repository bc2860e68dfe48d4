"""Mean-field predictions for an `nn.Module`: what `trimtab.predict` does."""

from trimtab.theory.from_model.prediction import Prediction, predict

__all__ = ["Prediction", "predict"]
