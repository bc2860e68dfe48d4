"""The largest stable learning rate of a model: measured with its own weights, or predicted from its layers."""

from trimtab.prediction.measuring import Measurement, measure_lambda_max
from trimtab.prediction.predicting import predict
from trimtab.prediction.result import Prediction
from trimtab.prediction.seen import SeenInTraining

__all__ = ["Measurement", "Prediction", "SeenInTraining", "measure_lambda_max", "predict"]
