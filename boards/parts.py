"""What boards have in common: budgets of the parts, engines that fit several boards."""

from __future__ import annotations

from .board import Resources

__all__ = [
    "ECP5_12F",
    "ECP5_25F",
    "ECP5_45F",
    "ECP5_85F",
    "ENGINE_2X4",
    "ENGINE_4X4",
    "ENGINE_16X8",
]


def _ecp5(luts: int, dsps: int, brams: int) -> Resources:
    return Resources(
        luts=luts,
        ffs=luts,
        dsps=dsps,
        brams=brams,
        bram_bits=18_432,
        source=f"Lattice FPGA-DS-02012, selection guide: {luts / 1000:.0f}k LUTs, "
        f"{dsps} multipliers, {brams} EBR",
    )


ECP5_12F = _ecp5(12_144, 28, 32)
ECP5_25F = _ecp5(24_288, 28, 56)
ECP5_45F = _ecp5(43_848, 72, 108)
ECP5_85F = _ecp5(83_640, 156, 208)

# Fields of hdl.config.EngineConfig. The first is its default: the engine of an 85F.
ENGINE_16X8: dict[str, int] = {
    "lanes": 16,
    "simd": 8,
    "requantisers": 4,
    "act_banks": 3,
    "act_bank_words": 2048,
    "weight_words": 2112,
    "param_words": 512,
    "tables": 8,
    "addends": 4,
    "instructions": 64,
    "isa": 1,
}
# Of a 25F.
ENGINE_4X4: dict[str, int] = {
    **ENGINE_16X8,
    "lanes": 4,
    "simd": 4,
    "requantisers": 1,
    "weight_words": 3072,
    "addends": 2,
}
# With at most 16 multipliers, those of requantiser and link included.
ENGINE_2X4: dict[str, int] = {
    **ENGINE_4X4,
    "lanes": 2,
    "act_bank_words": 2048,
    "weight_words": 4096,
}
