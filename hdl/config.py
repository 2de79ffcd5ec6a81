"""Parameters of the engine in one frozen value; pure data, without Amaranth."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields

__all__ = ["DEFAULT", "SMALL", "EngineConfig"]


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
    instructions : int
        Depth of the instruction memory.
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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"engine: {field.name} is {value!r}, must be an integer of at least 1"
                )
        for name in ("lanes", "simd", "requantisers", "act_bank_words", "tables", "addends"):
            if not _power_of_two(getattr(self, name)):
                raise ValueError(f"engine: {name} is {getattr(self, name)}, must be a power of two")
        if self.requantisers > self.lanes:
            raise ValueError(
                f"engine: {self.requantisers} requantisers for {self.lanes} lanes; "
                f"at most {self.lanes} can be used"
            )
        if self.act_words > 1 << 16 or self.weight_words > 1 << 16 or self.param_words > 1 << 16:
            raise ValueError(
                "engine: a memory is deeper than the 65,536 words an instruction can address"
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
        return self.simd >= 3

    @property
    def beats(self) -> int:
        """Cycles that the requantisers need for the sums of all lanes."""
        return self.lanes // self.requantisers

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
