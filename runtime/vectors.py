"""Test vectors as `.npz` bytes: deterministic to write, bounded and never unpickled to read."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .manifest import BundleError

__all__ = ["pack_vectors", "unpack_vectors"]

MAX_ARRAYS: Final = 4096
MAX_BYTES: Final = 2 << 30
MAX_RATIO: Final = 200


def pack_vectors(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """`.npz` bytes that depend on names and values only (numpy's own depend on their order)."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            one = io.BytesIO()
            array = np.require(arrays[name], requirements="C")
            np.lib.format.write_array(one, array, version=(1, 0), allow_pickle=False)
            archive.writestr(info, one.getvalue())
    return packed.getvalue()


def unpack_vectors(where: str, data: bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays of `.npz` bytes by name; :class:`BundleError` naming ``where``."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            total = sum(info.file_size for info in infos)
            if len(infos) > MAX_ARRAYS or total > min(MAX_BYTES, MAX_RATIO * len(data)):
                raise BundleError(
                    f"{where}: {len(infos)} arrays of {total} bytes in {len(data)}, above the "
                    f"limits {MAX_ARRAYS}, {MAX_BYTES} and ratio {MAX_RATIO}; do not trust it"
                )
            return {i.filename.removesuffix(".npy"): _array(archive.read(i)) for i in infos}
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise BundleError(
            f"{where}: is not a plain .npz file ({error}); compile the model again"
        ) from error
    except NotImplementedError as error:
        raise BundleError(f"{where}: {error}; compile the model again") from error


def _array(data: bytes) -> npt.NDArray[Any]:
    """One `.npy`; its header is held against the bytes there are before anything is allocated."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f".npy version {version}, not (1, 0)")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which would need pickle")
    body = data[file.tell() :]
    count = 1
    for dim in shape:
        count *= dim
    if count * dtype.itemsize != len(body):
        raise ValueError(
            f"shape {shape} of {dtype} needs {count * dtype.itemsize} bytes, not {len(body)}"
        )
    array = np.frombuffer(body, dtype).copy()
    return array.reshape(shape, order="F" if fortran else "C")
