"""Multi-crop views of a batch: boxes, pixels and colors, every number drawn from (seed, epoch, sample index, view)."""

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from aotadmm_timm.errors import UserError

from . import crops, photometric
from .draws import uniform
from .photometric import Photometric

# Streams of random numbers that must not share values.
_CROP, _COLOR, _ORDER, _TURN = range(4)
# Pixels that are colored at once: on a CPU their planes stay in the cache, elsewhere fewer launches count.
_TILE = {"cpu": 1 << 18}
_TILE_ELSEWHERE = 1 << 24


@dataclass(frozen=True)
class MultiCrop:
    """What views an image gives: `num_global` large crops of `global_size` pixels and `num_local` small ones.

    Defaults: the CIFAR recipe, 2 x 32 and 6 x 16 pixels, scales (.3, 1) and (.05, .3) of the area, flips, DINO colors.
    `rotate` is the largest turn in degrees; `mean` and `std` normalize the views.
    """

    num_global: int = 2
    num_local: int = 6
    global_size: int = 32
    local_size: int = 16
    global_scale: tuple[float, float] = (0.3, 1.0)
    local_scale: tuple[float, float] = (0.05, 0.3)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    hflip: float = 0.5
    rotate: float = 0.0
    photometric: Photometric = field(default_factory=Photometric)
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_global < 1 or self.num_local < 0:
            raise UserError(f"needs at least one global view, got {self.num_global} global, {self.num_local} local")
        for name in ("global_scale", "local_scale", "ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high or (name != "ratio" and high > 1):
                raise UserError(f"{name} must be an increasing range of positive shares, got {(low, high)}")
        for name in ("global_size", "local_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be positive, got {getattr(self, name)}")

    @property
    def num_views(self) -> int:
        return self.num_global + self.num_local

    def boxes(self, size: tuple[int, int], epoch: int, index: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Boxes (B, V, 4) and flips (B, V) of the global and of the local views, for images of `size` (H, W)."""
        groups = []
        for views, scale in (
            (range(self.num_global), self.global_scale),
            (range(self.num_global, self.num_views), self.local_scale),
        ):
            if views:
                u = uniform(self.seed, epoch, index, np.array(views), crops.DRAWS, stream=_CROP)
                groups.append(crops.draw_boxes(u, size, scale=scale, ratio=self.ratio, hflip=self.hflip))
        return groups

    def crop_batch(self, images: Tensor, epoch: int, index: np.ndarray) -> list[Tensor]:
        """Float crops in [0, 1]: global (Vg, B, C, G, G) and local (Vl, B, C, L, L), from uint8 images (B, C, H, W)."""
        size = (images.shape[2], images.shape[3])
        angles = None
        if self.rotate:
            u = uniform(self.seed, epoch, index, self.num_views, 1, stream=_TURN)[..., 0]
            angles = torch.from_numpy(np.deg2rad(self.rotate) * (2 * u - 1)).to(images.device, torch.float32)
        out, done = [], 0
        for (drawn, flipped), out_size in zip(
            self.boxes(size, epoch, index), (self.global_size, self.local_size), strict=False
        ):
            boxes, flips = torch.from_numpy(drawn).to(images.device), torch.from_numpy(flipped).to(images.device)
            if angles is None:
                views = crops.crop_resize(images, boxes, flips, out_size)
            else:
                turns = angles[:, done : done + boxes.shape[1]]
                views = crops.crop_rotate(images, boxes, flips, turns, out_size)
            done += boxes.shape[1]
            out.append(views.div_(255))
        return out

    def crop_picture(self, image: Image.Image, epoch: int, index: int) -> list[np.ndarray]:
        """uint8 crops of one picture of any size, unturned: global (Vg, C, G, G) and local (Vl, C, L, L)."""
        size = (image.height, image.width)
        out = []
        for (boxes, flips), out_size in zip(
            self.boxes(size, epoch, np.array([index])), (self.global_size, self.local_size), strict=False
        ):
            views = zip(boxes[0], flips[0], strict=True)
            out.append(np.stack([crops.crop_picture(image, box, bool(flip), out_size) for box, flip in views]))
        return out

    def color(self, groups: list[Tensor], epoch: int, index: np.ndarray) -> list[Tensor]:
        """Augment the colors of float crops in [0, 1] and normalize them; same shapes, contiguous."""
        mean = torch.tensor(self.mean, device=groups[0].device).view(-1, 1, 1, 1)
        std = torch.tensor(self.std, device=groups[0].device).view(-1, 1, 1, 1)
        u = uniform(self.seed, epoch, index, self.num_views, photometric.DRAWS, stream=_COLOR)
        order = uniform(self.seed, epoch, np.zeros(1), self.num_views, 4, stream=_ORDER)[0].argsort(-1)
        out, view = [], 0
        for group in groups:
            result = torch.empty(group.shape, device=group.device)
            for crop, normalized in zip(group, result, strict=True):
                size = (crop.shape[2], crop.shape[3])
                tile = max(1, _TILE.get(crop.device.type, _TILE_ELSEWHERE) // (size[0] * size[1]))
                for start in range(0, len(crop), tile):
                    part = slice(start, start + tile)
                    planes = crop[part].transpose(0, 1).contiguous()
                    photometric.augment(planes.flatten(2), size, u[part, view], order[view], self.photometric)
                    normalized[part] = planes.sub_(mean).div_(std).transpose(0, 1)
                view += 1
            out.append(result)
        return out

    def __call__(self, images: Tensor, epoch: int, index: np.ndarray) -> list[Tensor]:
        """Views of uint8 images (B, C, H, W): [global (Vg, B, C, G, G)] and, if any, [local (Vl, B, C, L, L)]."""
        return self.color(self.crop_batch(images, epoch, index), epoch, index)

    def replace(self, **changes: object) -> "MultiCrop":
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


# Colors mean nothing to handwritten digits, and their mirror images are other signs.
DIGITS = MultiCrop(
    num_global=2,
    num_local=0,
    global_size=32,
    local_size=16,
    global_scale=(0.6, 1.0),
    local_scale=(0.2, 0.5),
    hflip=0.0,
    rotate=12.0,
    photometric=Photometric(jitter=(0.3, 0.3, 0.0, 0.0), gray_prob=0.0, blur_prob=0.0, solarize_prob=0.0),
)


def default_crop(views: str, dataset: str | None) -> MultiCrop:
    """The views called "natural" or "digits"; "auto" goes by the data set."""
    digits = dataset == "digits" if views == "auto" else views == "digits"
    return DIGITS if digits else MultiCrop()
