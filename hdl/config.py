"""Parameters of the engine in one frozen value; pure data, without Amaranth."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields

__all__ = ["DEFAULT", "SERIAL_INTERVAL", "SMALL", "EngineConfig"]

SERIAL_INTERVAL = 40  # cycles a result of the serial requantiser
_SWITCHES = frozenset({"serial", "weight_spram", "expander", "counters", "compact"})
_MAY_BE_ZERO = _SWITCHES | {"tables", "addends"}


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@dataclass(frozen=True)
class EngineConfig:
    """What is generated: ``lanes`` output channels x ``simd`` products each, per cycle.

    Parameters
    ----------
    lanes, simd : int
        Powers of two. Multipliers = ``lanes * simd``.
    requantisers : int
        Results written per cycle; a power of two that divides ``lanes``.
    act_banks, act_bank_words : int
        Activation memory: banks of ``word_bytes``-wide words, one read and one write port a bank.
    weight_words : int
        Words of ``lanes * simd`` weights.
    param_words : int
        Words of ``requantisers`` channels (bias and multiplier, 8 bytes each).
    tables, addends : int
        Unary tables of 256 bytes; pairs of tables for residual adds.
        0: none, and layers with one are refused.
    instructions : int
        Depth of the instruction memory.
    serial : int
        1: one requantiser that takes ``beat_cycles`` cycles a result and needs no DSP block.
    weight_spram : int
        1: weights in single-port RAM, 16 bits wide and 16,384 words deep a block (iCE40 UltraPlus).
    expander : int
        0: inputs are not spread over windows as they arrive.
    counters : int
        0: no counters of single layers; they read as 0.
    compact : int
        1: no copy of the next instruction is kept: it is fetched, four bytes a cycle, when the last
        slice of a layer is issued, its fields are as wide as the activation memory needs, and no
        run is queued behind the one at hand. Only behind a serial requantiser, whose drain is long
        enough for that.
    """

    lanes: int = 16
    simd: int = 8
    requantisers: int = 4
    act_banks: int = 3
    act_bank_words: int = 2048
    weight_words: int = 2112
    param_words: int = 512
    tables: int = 8
    addends: int = 4
    instructions: int = 64
    isa: int = 1
    serial: int = 0
    weight_spram: int = 0
    expander: int = 1
    counters: int = 1
    compact: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"engine: {field.name} is {value!r}, must be an integer of at least {least}"
                )
            if field.name in _SWITCHES and value > 1:
                raise ValueError(f"engine: {field.name} is {value}, must be 0 or 1")
        for name in ("lanes", "simd", "requantisers", "act_bank_words", "tables", "addends"):
            value = getattr(self, name)
            if not _power_of_two(value) and (value or name not in _MAY_BE_ZERO):
                raise ValueError(f"engine: {name} is {value}, must be a power of two")
        if self.requantisers > self.lanes:
            raise ValueError(
                f"engine: {self.requantisers} requantisers for {self.lanes} lanes; "
                f"at most {self.lanes} can be used"
            )
        if self.act_words > 1 << 16 or self.weight_words > 1 << 16 or self.param_words > 1 << 16:
            raise ValueError(
                "engine: a memory is deeper than the 65,536 words an instruction can address"
            )
        if self.serial and self.requantisers != 1:
            raise ValueError(
                f"engine: {self.requantisers} serial requantisers; there is one, set requantisers "
                "to 1 or serial to 0"
            )
        if self.compact and not self.serial:
            raise ValueError(
                "engine: compact needs the long drain of a serial requantiser; set serial to 1, "
                "or compact to 0"
            )
        if self.pixel_cycles > 256:
            raise ValueError(
                f"engine: requantising {self.lanes} lanes takes {self.pixel_cycles} cycles, an "
                "instruction can wait for at most 256; use fewer lanes or more requantisers"
            )
        if self.weight_spram and (self.weight_word_bytes % 2 or self.weight_words > 1 << 14):
            raise ValueError(
                f"engine: {self.weight_words} weight words of {self.weight_word_bytes} bytes do "
                "not fit single-port RAM: 16,384 words of an even number of bytes at most"
            )

    @property
    def word_bytes(self) -> int:
        """Bytes of an activation word; a pixel's channels are padded to whole words."""
        return max(self.lanes, self.simd)

    @property
    def act_words(self) -> int:
        return self.act_banks * self.act_bank_words

    @property
    def weight_word_bytes(self) -> int:
        return self.lanes * self.simd

    @property
    def multipliers(self) -> int:
        return self.lanes * self.simd

    @property
    def has_window(self) -> bool:
        """Whether lanes can take three taps of a row at once: a multiplier for each."""
        return self.simd >= 3 and not self.serial

    @property
    def has_product(self) -> bool:
        """Whether a layer can multiply two tensors: a DSP block a requantiser."""
        return self.addends > 0 and not self.serial

    @property
    def dsps(self) -> int:
        """Hard multipliers of 18 x 18 bits: a product each, and a requantiser's.

        That has four pieces of 24 x 24 bits (hdl/requant.py; the serial one adds bit by bit), and
        one for products of two tensors.
        """
        pieces = 0 if self.serial else 4
        return self.multipliers + (pieces + self.has_product) * self.requantisers

    @property
    def beats(self) -> int:
        """Beats of ``requantisers`` results that the sums of all lanes make."""
        return self.lanes // self.requantisers

    @property
    def beat_cycles(self) -> int:
        """Cycles from one beat to the next."""
        return SERIAL_INTERVAL if self.serial else 1

    @property
    def pixel_cycles(self) -> int:
        """Cycles that the requantisers need for the sums of all lanes."""
        return self.beats * self.beat_cycles

    @property
    def fetch_bytes(self) -> int:
        """Bytes of an instruction that the sequencer reads in a cycle."""
        return 4 if self.compact else 16

    def field_bits(self, name: str) -> int:
        """Bits of an instruction's field of 16 that are looked at."""
        if not self.compact:
            return 16
        if name == "weights":
            return (self.weight_words - 1).bit_length()
        if name == "params":
            return (self.param_words - 1).bit_length()
        if name in ("blocks", "c_slices"):  # a word holds so many of them
            return (self.act_words * self.word_bytes // min(self.lanes, self.simd)).bit_length()
        if name in ("out_h", "out_w", "in_h", "in_w", "columns"):  # a pixel fills a word at least
            return self.act_words.bit_length()
        return self.address_bits

    @property
    def address_bits(self) -> int:
        """Bits of an activation word's address that are computed with."""
        return (self.act_words - 1).bit_length() if self.compact else 16

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, int]) -> EngineConfig:
        """Inverse of :meth:`to_dict`; ValueError names an unknown or missing field."""
        known = {f.name for f in fields(cls)}
        if set(values) != known:
            odd = sorted(set(values) ^ known)
            raise ValueError(
                f"engine: configuration fields {odd} unknown or missing; expected {sorted(known)}"
            )
        return cls(**values)

    @property
    def sha256(self) -> str:
        """Identity of the configuration: hash of its canonical JSON."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


DEFAULT = EngineConfig()
SMALL = EngineConfig(
    lanes=4, simd=4, requantisers=2, act_bank_words=1024, weight_words=1024, param_words=256,
    tables=2, addends=2, instructions=32,
)
