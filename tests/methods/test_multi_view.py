"""The backbone's features of several views, in their order."""

import pytest
import timm
import torch
from methods.backbones import Linear, random_views, tiny_vit

from aotadmm_timm.methods import LeJEPA, Views
from aotadmm_timm.methods.multi_view import backbone_features, feature_width


def test_views_come_out_in_order() -> None:
    views, backbone = random_views(4, 2, 3), tiny_vit().eval()
    features = backbone_features(backbone, views)
    assert features.shape == (5, 4, 24)
    assert torch.allclose(features[1, 2], backbone(views.global_views[1, 2:3])[0], atol=1e-6)
    assert views.local_views is not None
    assert torch.allclose(features[2, 3], backbone(views.local_views[0, 3:])[0], atol=1e-6)
    assert backbone_features(backbone, Views(views.global_views)).shape == (2, 4, 24)


def test_what_is_no_backbone_is_named() -> None:
    assert feature_width(Linear()) == 6
    with pytest.raises(ValueError, match="Identity has none"):
        LeJEPA(torch.nn.Identity())
    with pytest.raises(ValueError, match="num_classes=0, got 10"):
        LeJEPA(timm.create_model("test_vit", num_classes=10))
