"""The largest stable learning rate of a model: measured with its own weights, or predicted from its layers."""

from trimtab.prediction.measuring import Measurement, measure_lambda_max
from trimtab.prediction.predicting import Prediction, predict

__all__ = ["Measurement", "Prediction", "measure_lambda_max", "predict"]
