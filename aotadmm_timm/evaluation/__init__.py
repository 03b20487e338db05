"""What frozen features are worth: classification, retrieval, spectrum, and what happens inside the layers."""

from aotadmm_timm.evaluation.features import extract_features
from aotadmm_timm.evaluation.knn import knn_accuracy
from aotadmm_timm.evaluation.linear_probe import few_label_probe, linear_probe
from aotadmm_timm.evaluation.spectrum import rankme

__all__ = ["extract_features", "few_label_probe", "knn_accuracy", "linear_probe", "rankme"]
