"""``folder:PATH``: a user's own images, one directory per class.

Either ``PATH/train/CLASS/*`` and ``PATH/test/CLASS/*`` (or ``val``, where ``test`` has no class directories), or just
``PATH/CLASS/*``. In the second case about a fifth of every class is set aside for testing, chosen by a hash of the
file name, so that a file stays on its side when others are added.

Class names are the directory names, sorted. Files are looked at when the folder is loaded: unreadable ones are left
out and named in ``skipped`` of the source, and a class left without images is an error. Beyond 100,000 files in
a split this would take too long to wait for; they are then believed, an unreadable one stops the run when it is read,
and ``drcil data check`` finds them all.
"""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import UserError
from ...settings import expand_user
from ..class_folders import load_class_folders, require_classes, require_common, split_by_hash
from ..dataset import PHOTO_SPEC, Dataset, ManualDownload, register_dataset
from ..decoding import STANDARD
from ..file_source import FileSource, directory_names, is_text
from ..user_images import normalize_class_name

_LAYOUTS = "PATH/CLASS/images, or PATH/train/CLASS/images and PATH/test/CLASS/images"


@register_dataset("folder", spec=PHOTO_SPEC, download=ManualDownload("it is a folder of your own"), argument="PATH")
def load_folder(directory: str | Path, root: Path | None = None, image_size: int | None = None) -> Dataset:
    """Your own images, one directory per class. Either of the two layouts will do."""
    path = expand_user(directory).absolute()
    if not os.path.isdir(path):  # Unlike ``Path.is_dir`` it never raises.
        raise UserError(f"folder:{path} is not a directory; give the path of a folder with one directory per class")
    if not is_text(str(path)):
        raise UserError(f"the path {os.fsencode(path)!r} is not UTF-8; rename it")
    classes = directory_names(path)
    size = image_size or STANDARD
    if "train" in classes and directory_names(path / "train"):
        training, testing = path / "train", _test_directory(path)
        classes = directory_names(training)
        require_common(classes, directory_names(testing), str(training), str(testing))
        train = load_class_folders(training, classes, size).images
        test = load_class_folders(testing, classes, size).images
    else:
        require_classes(path, classes, _LAYOUTS)
        everything = load_class_folders(path, classes, size).images
        assert isinstance(everything.source, FileSource)
        train, test = split_by_hash(everything, classes, everything.source.files.encoded(everything.rows))
    return Dataset(f"folder:{path}", tuple(map(normalize_class_name, classes)), train, test, PHOTO_SPEC)


def _test_directory(path: Path) -> Path:
    for name in ("test", "val"):
        if os.path.isdir(path / name) and directory_names(path / name):
            return path / name
    raise UserError(f"{path} has train/CLASS but neither test/CLASS nor val/CLASS directories beside it")
