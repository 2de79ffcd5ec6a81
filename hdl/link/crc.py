"""CRC-32 of the host link: zlib's polynomial and reflections, a byte a cycle."""

from amaranth.lib.crc import Processor
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC

__all__ = ["crc32"]


def crc32() -> Processor:
    """A byte-wide CRC-32 that equals :func:`zlib.crc32`.

    ``crc`` holds the checksum of the bytes taken with ``valid`` since ``start``, one cycle after
    the last; ``match_detected`` is high when the last four bytes were the little-endian checksum
    of those before. Polynomial and residue are those of CRC-32/ISO-HDLC (IEEE 802.3).
    """
    return CRC32_ISO_HDLC(data_width=8).create()
