"""What frozen features are worth: classification, retrieval, spectrum, and what happens inside the layers."""

from aotadmm_timm.evaluation.augmentation import augmentation_thickness, view_cosines
from aotadmm_timm.evaluation.features import extract_features
from aotadmm_timm.evaluation.knn import knn_accuracy
from aotadmm_timm.evaluation.layerwise import layer_curves, theory_gap
from aotadmm_timm.evaluation.linear_probe import few_label_probe, linear_probe
from aotadmm_timm.evaluation.maps import attention_maps, patch_pca
from aotadmm_timm.evaluation.retrieval import retrieval
from aotadmm_timm.evaluation.spectrum import rankme
from aotadmm_timm.losses.expansion_diagnostics import expansion_diagnostics

__all__ = [
    "attention_maps",
    "augmentation_thickness",
    "expansion_diagnostics",
    "extract_features",
    "few_label_probe",
    "knn_accuracy",
    "layer_curves",
    "linear_probe",
    "patch_pca",
    "rankme",
    "retrieval",
    "theory_gap",
    "view_cosines",
]
