"""Lets through what the board's owner asks, once and in order."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .frames import Frame, Nak, Type

__all__ = ["LEASE_CYCLES", "Gate"]

LEASE_CYCLES = 1 << 28  # 2.7 s at 100 MHz


class Gate(wiring.Component):
    """Judges each frame that the receiver holds, before the controller looks at it.

    The owner is who did the last RESET; ``frame.flags`` of its requests is the low byte of the
    epoch that this RESET made. Others may say HELLO. RESET without an epoch (``flags`` 0) takes the
    board when nobody has it: after power-up, or when the owner was silent for the time of a lease,
    in which the engine did not run either, or did a RESET of stream 0. As long as nobody ever did a
    RESET anybody may ask, and in any order.

    Of an owner's requests, a LOAD must have a higher number (modulo 2^16) than the LOADs and RUNs
    before, a RUN a higher one than the RUNs before or that of the last two, which the controller
    knows. So a copy that comes late changes nothing.

    Parameters
    ----------
    lease_cycles : :class:`int`
        Length of a lease.
    compact : :class:`bool`
        Compare the epoch and no more: for small boards, whose one line has one host.

    Members
    -------
    frame : :py:`In(Frame)`, valid : :py:`In(1)`
        What the receiver holds.
    epoch : :py:`In(32)`
        The controller's.
    release : :py:`In(1)`, run : :py:`In(1)`
        Pulses: the controller is done with the frame; it has accepted it as a run.
    busy : :py:`In(1)`
        The engine runs.
    nak : :py:`Out(3)`
        Reason to refuse the frame, or 0: from the cycle after ``valid`` until the frame is gone.
    """

    frame: In(Frame)
    valid: In(1)
    epoch: In(32)
    release: In(1)
    run: In(1)
    busy: In(1)
    nak: Out(3)

    def __init__(self, *, lease_cycles=LEASE_CYCLES, compact=False):
        if lease_cycles < 1:
            raise ValueError(f"gate: a lease has {lease_cycles} cycles, must have at least 1")
        self.lease_cycles = lease_cycles
        self.compact = compact
        super().__init__()

    def elaborate(self, platform):
        m = Module()

        # Registers of what the header says: it is there long before the frame's end.
        is_owner = Signal()
        is_reset = Signal()
        is_hello = Signal()
        m.d.sync += [
            is_owner.eq(self.frame.flags == self.epoch[:8]),
            is_reset.eq(self.frame.type == Type.RESET),
            is_hello.eq(self.frame.type == Type.HELLO),
        ]
        judged = Signal()  # ``nak`` is about the frame that is held, and stays
        refusal = Signal(Nak)
        m.d.sync += judged.eq(self.valid)
        with m.If(~judged):
            m.d.sync += self.nak.eq(Mux(self.frame.nak != 0, self.frame.nak, refusal))
        if self.compact:
            with m.If(~is_owner & ~is_hello & ~is_reset):
                m.d.comb += refusal.eq(Nak.OWNER)
            return m

        last = Signal(16)  # number of the LOAD or RUN done last
        runs = [Signal(16, name=f"run{k}") for k in range(2)]  # the last RUNs, the later one first
        is_newer = Signal()
        is_newer_run = Signal()
        is_known_run = Signal()
        is_owned = Signal()
        takes = Signal()  # has no epoch
        is_load = Signal()
        is_run = Signal()
        left = Signal(signed(self.lease_cycles.bit_length() + 1), init=-1)  # below 0: no lease
        is_free = left[-1]

        def follows(number):
            """The frame's number is above that one."""
            return (number - self.frame.seq)[15]

        m.d.sync += [
            is_newer.eq(follows(last)),
            is_newer_run.eq(follows(runs[0])),
            is_known_run.eq((self.frame.seq == runs[0]) | (self.frame.seq == runs[1])),
            is_owned.eq(self.epoch[:8] != 0),
            takes.eq(self.frame.flags == 0),
            is_load.eq(self.frame.type == Type.LOAD),
            is_run.eq(self.frame.type == Type.RUN),
        ]
        with m.If(is_hello):
            pass
        with m.Elif(is_reset), m.If(~is_owner & ~(takes & is_free)):
            m.d.comb += refusal.eq(Nak.OWNER)
        with m.Elif(~is_owner):
            m.d.comb += refusal.eq(Nak.OWNER)
        with m.Elif(is_owned & ((is_load & ~is_newer) | (is_run & ~is_newer_run & ~is_known_run))):
            m.d.comb += refusal.eq(Nak.OLD)

        is_done = Signal()
        m.d.comb += is_done.eq(self.release & judged & (self.nak == 0))
        with m.If(is_done & is_reset):
            m.d.sync += [number.eq(self.frame.seq) for number in (last, *runs)]
        with m.If(is_done & is_load):
            m.d.sync += last.eq(self.frame.seq)
        with m.If(self.run):
            m.d.sync += [runs[0].eq(self.frame.seq), runs[1].eq(runs[0])]
            with m.If(is_newer):
                m.d.sync += last.eq(self.frame.seq)

        with m.If(is_done & is_reset & (self.frame.stream == 0)):
            m.d.sync += left.eq(-1)
        with m.Elif(self.busy | (is_done & (is_owner | is_reset))):
            m.d.sync += left.eq(self.lease_cycles - 1)
        with m.Elif(~is_free):
            m.d.sync += left.eq(left - 1)

        return m
