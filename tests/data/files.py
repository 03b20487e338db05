"""Small real files of each kind of data set."""

import io
import tarfile
from pathlib import Path

from PIL import Image


def picture(value: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new("RGB", size, (value, 255 - value, value // 2))


def write(path: Path, value: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(value).save(path)
    return path


def shard(path: Path, samples: dict[str, tuple[int, int | None]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for key, (value, label) in samples.items():
            members = {f"{key}.png": picture(value)} | ({f"{key}.cls": label} if label is not None else {})
            for name, content in members.items():
                if isinstance(content, Image.Image):
                    buffer = io.BytesIO()
                    content.save(buffer, "PNG")
                    data = buffer.getvalue()
                else:
                    data = str(content).encode()
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
