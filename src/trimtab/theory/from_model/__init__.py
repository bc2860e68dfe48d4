"""Mean-field predictions for an `nn.Module`, of one output; `trimtab.predict` goes on from them."""

from trimtab.theory.from_model.prediction import MeanFieldPrediction, OutputLayer, mean_field_prediction

__all__ = ["MeanFieldPrediction", "OutputLayer", "mean_field_prediction"]
