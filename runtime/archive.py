"""The zip of a bundle: opened, checked, written; every size is bounded before it is read."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .manifest import BundleError, check_name

__all__ = ["check_archive", "check_sizes", "open_archive", "read_member", "umask", "write_archive"]

MAX_MEMBERS: Final = 4096
MAX_MEMBER_BYTES: Final = 2 << 30  # an ONNX file (one protobuf message) cannot be larger
MAX_TOTAL_BYTES: Final = 16 << 30
MAX_JSON_BYTES: Final = 64 << 20
MAX_RATIO: Final = 200  # unpacked : packed; ours are stored (1), weights and code reach about 100
MAX_DIRECTORY_BYTES: Final = 4 << 20


def umask() -> int:
    """The process's file mode mask."""
    value = os.umask(0o077)
    os.umask(value)
    return value


def write_archive(file: Any, members: Mapping[str, bytes]) -> None:
    """Members sorted, uncompressed and with a fixed date."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, members[name])


def open_archive(path: Path) -> zipfile.ZipFile:
    """The zip; BundleError when the file is none."""
    if path.exists() and not path.is_file():  # a FIFO would block for ever
        raise BundleError(f"{path}: is no regular file; give the path of a bundle")
    try:
        with open(path, "rb") as file:
            _check_directory(path, file)
        return zipfile.ZipFile(path)
    except OSError as error:
        raise BundleError(
            f"{path}: cannot be opened ({error.strerror or error}); check the path"
        ) from error
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as error:
        raise BundleError(
            f"{path}: is not a bundle, or was cut short ({error}); compile or copy it again"
        ) from error


def _check_directory(path: Path, file: Any) -> None:
    """Bound the zip's directory before ``zipfile`` reads it whole."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 66_000))
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        raise zipfile.BadZipFile("no zip directory at its end")
    (directory,) = struct.unpack_from("<I", tail, at + 12)
    if directory > MAX_DIRECTORY_BYTES:
        raise BundleError(
            f"{path}: its zip directory has {directory} bytes, above the limit "
            f"{MAX_DIRECTORY_BYTES}; this is not a bundle of ours"
        )


def check_archive(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Members by name; BundleError for names, sizes or methods that a bundle never has."""
    listed = archive.infolist()
    if len(listed) > MAX_MEMBERS:
        raise BundleError(
            f"{path}: has {len(listed)} members, above the limit {MAX_MEMBERS}; "
            "this is not a bundle of ours"
        )
    infos: dict[str, zipfile.ZipInfo] = {}
    for info in listed:
        name = info.orig_filename  # zipfile cuts `filename` at a NUL and rewrites separators
        reason = check_name(name)
        if name in infos:
            reason = "is in the zip twice"
        elif info.flag_bits & 0x1:
            reason = "is encrypted"
        elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            reason = f"has compression method {info.compress_type}, not stored or deflate"
        if reason is not None:
            raise BundleError(
                f"{path}: member '{name[:80]}' {reason}; do not trust this file, "
                "compile the model again"
            )
        infos[name] = info
    check_sizes(path, {n: (i.file_size, i.compress_size) for n, i in infos.items()})
    return infos


def check_sizes(path: Path, sizes: Mapping[str, tuple[int, int]]) -> None:
    """``sizes``: member -> bytes unpacked and packed."""
    for name, (size, packed) in sizes.items():
        limit = MAX_JSON_BYTES if name.endswith(".json") else MAX_MEMBER_BYTES
        if size > limit:
            raise BundleError(
                f"{path}: member '{name}' has {size} bytes, above the limit {limit}; "
                "split the model into smaller ones"
            )
        if size > MAX_RATIO * max(packed, 1):
            raise BundleError(
                f"{path}: member '{name}' unpacks {packed} bytes to {size}, above the ratio "
                f"{MAX_RATIO}; do not trust this file, compile the model again"
            )
    total = sum(size for size, _ in sizes.values())
    if total > MAX_TOTAL_BYTES:
        raise BundleError(
            f"{path}: unpacks to {total} bytes, above the limit {MAX_TOTAL_BYTES}; "
            "split the model into smaller ones"
        )


def read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A member's bytes; BundleError when they are damaged."""
    try:
        data = archive.read(info)
        if len(data) != info.file_size:
            raise zipfile.BadZipFile(f"{len(data)} bytes of {info.file_size}")
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        RuntimeError,
        NotImplementedError,
        OverflowError,
        UnicodeDecodeError,
        struct.error,
    ) as error:
        raise BundleError(
            f"{path}: member '{info.filename}' cannot be read ({error}); the file is damaged or "
            "was cut short, compile or copy it again"
        ) from error
    return data
