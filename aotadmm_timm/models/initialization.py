"""Initialization that does not depend on the precision a model is built in."""

import torch
from timm.models.vision_transformer import VisionTransformer


class Float32InitTransformer(VisionTransformer):
    """timm's VisionTransformer, initialized in float32 and then cast.

    timm draws truncated normals in the parameter's own precision by inverting a uniform variable. In bfloat16 that
    variable hits its end points once in some 500 draws and the weight becomes the bound, 2 instead of about 0.02.
    """

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """As timm's; parameters and buffers of half precision are set in float32 and rounded."""
        dtypes = {name: tensor.dtype for name, tensor in [*self.named_parameters(), *self.named_buffers()]}
        low = any(dtype in (torch.bfloat16, torch.float16) for dtype in dtypes.values())
        if low:
            self.float()
        super().init_weights(mode, needs_reset)
        if low:
            for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
                tensor.data = tensor.data.to(dtypes[name])
