"""UART, 8 data bits, no parity, 1 stop bit, as byte streams.

Bits are timed by a phase accumulator: its carry comes ``baud`` times a second on average, so the
clock need not be a multiple of the rate; a bit's edge is off by one cycle at most.
"""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from trivet.hdl.link.buffer import Buffer

__all__ = ["LEAST_CYCLES", "Uart", "UartReceiver", "UartTransmitter", "phase"]

# A bit's, at the least: the start edge is seen up to a cycle late, and rates may differ by 2 %.
LEAST_CYCLES = 6
ERROR = 1 / 2000  # of the rate: nothing beside the crystals' and the cycle that an edge is off
DATA_BITS = 8


def phase(clock_hz, baud):
    """Width of the accumulator and what is added to it each cycle.

    The narrowest that meets :data:`ERROR`; ValueError when the clock is too slow for the rate.
    """
    if baud < 1 or clock_hz < LEAST_CYCLES * baud:
        raise ValueError(
            f"uart: {baud} baud at {clock_hz / 1e6:g} MHz is {clock_hz / max(baud, 1):.1f} cycles "
            f"a bit, at least {LEAST_CYCLES} are needed; choose a lower rate"
        )
    width = 1
    while True:
        step = round(baud * (1 << width) / clock_hz)
        if abs(step * clock_hz / (1 << width) / baud - 1) <= ERROR:
            return width, step
        width += 1


class UartTransmitter(wiring.Component):
    """Sends bytes, back to back when they come in time.

    Members
    -------
    i : :py:`In(stream.Signature(8))`
        Bytes; one is taken when the one before has left.
    tx : :py:`Out(1)`
        The line, from a register.
    """

    def __init__(self, clock_hz, baud):
        self.width, self.step = phase(clock_hz, baud)
        super().__init__({
            "i": In(stream.Signature(8)),
            "tx": Out(1, init=1),
        })

    def elaborate(self, platform):
        m = Module()
        accumulator = Signal(self.width)
        tick = Signal()
        bits = Signal(DATA_BITS + 1, reset_less=True)  # those after the one on the line
        left = Signal(range(DATA_BITS + 3))  # bits of the frame, the one on the line included
        m.d.comb += self.i.ready.eq(left == 0)
        m.d.sync += Cat(accumulator, tick).eq(accumulator + self.step)
        with m.If(left == 0):
            # A step ahead: the line follows the carry a cycle later.
            m.d.sync += Cat(accumulator, tick).eq(self.step)
            with m.If(self.i.valid):
                m.d.sync += [
                    bits.eq(Cat(self.i.payload, 1)),
                    self.tx.eq(0),
                    left.eq(DATA_BITS + 2),
                ]
        with m.Elif(tick):
            m.d.sync += [
                self.tx.eq(bits[0]),
                bits.eq(Cat(bits[1:], 1)),
                left.eq(left - 1),
            ]
        return m


class UartReceiver(wiring.Component):
    """Takes bytes from the line, each sampled in the middle of its bits.

    A start bit that is over by its middle is noise and ignored. A frame without a stop bit is
    dropped, and the line must be idle before the next one is looked for.

    Members
    -------
    rx : :py:`In(1)`
        The line, of any phase.
    data : :py:`Out(8)`, valid : :py:`Out(1)`
        A byte, for one cycle.
    error : :py:`Out(1)`
        A frame without a stop bit, for one cycle.
    """

    def __init__(self, clock_hz, baud):
        self.width, self.step = phase(clock_hz, baud)
        super().__init__({
            "rx": In(1, init=1),
            "data": Out(8),
            "valid": Out(1),
            "error": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        line = Signal(init=1)
        m.submodules.synchronizer = FFSynchronizer(self.rx, line, init=1)
        accumulator = Signal(self.width)
        tick = Signal()  # the middle of a bit
        left = Signal(range(DATA_BITS + 2))
        m.d.sync += [
            Cat(accumulator, tick).eq(accumulator + self.step),
            self.valid.eq(0),
            self.error.eq(0),
        ]
        with m.FSM():
            with m.State("IDLE"):
                # Half a bit ahead, so that the carry comes in the middle; and a cycle for that.
                m.d.sync += [
                    Cat(accumulator, tick).eq((1 << (self.width - 1)) + self.step),
                    left.eq(DATA_BITS),
                ]
                with m.If(~line):
                    m.next = "START"
            with m.State("START"), m.If(tick):
                with m.If(line):
                    m.next = "IDLE"
                with m.Else():
                    m.next = "DATA"
            with m.State("DATA"), m.If(tick):
                m.d.sync += [self.data.eq(Cat(self.data[1:], line)), left.eq(left - 1)]
                with m.If(left == 1):
                    m.next = "STOP"
            with m.State("STOP"), m.If(tick):
                m.d.sync += [self.valid.eq(line), self.error.eq(~line)]
                with m.If(line):
                    m.next = "IDLE"
                with m.Else():
                    m.next = "BREAK"
            with m.State("BREAK"), m.If(line):
                m.next = "IDLE"
        return m


class Uart(wiring.Component):
    """Both directions, with a FIFO behind the receiver.

    Parameters
    ----------
    clock_hz, baud : :class:`int`
        The domain's clock and the line's rate.
    depth : :class:`int`
        Bytes that are kept when nobody takes them. The line cannot be stopped: what comes beyond
        that is lost, and told by :attr:`error`.
    buffered : :class:`bool`
        Registers towards the logic: two bytes more each way.

    Members
    -------
    rx : :py:`In(1)`, tx : :py:`Out(1)`
        The line.
    o : :py:`Out(stream.Signature(8))`
        Bytes received.
    i : :py:`In(stream.Signature(8))`
        Bytes to send.
    error : :py:`Out(1)`
        A byte was lost: damaged, or the FIFO was full. For one cycle.
    """

    def __init__(self, clock_hz, baud, depth, *, buffered=True):
        self.depth = depth
        self.buffered = buffered
        self.receiver = UartReceiver(clock_hz, baud)
        self.transmitter = UartTransmitter(clock_hz, baud)
        super().__init__({
            "rx": In(1, init=1),
            "tx": Out(1, init=1),
            "o": Out(stream.Signature(8)),
            "i": In(stream.Signature(8)),
            "error": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.receiver = receiver = self.receiver
        m.submodules.transmitter = transmitter = self.transmitter
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=8, depth=self.depth)
        if self.buffered:
            m.submodules.received = received = Buffer(8)
            m.submodules.sent = sent = Buffer(8)
            wiring.connect(m, fifo.r_stream, received.i)
            wiring.connect(m, received.o, wiring.flipped(self.o))
            wiring.connect(m, wiring.flipped(self.i), sent.i)
            wiring.connect(m, sent.o, transmitter.i)
        else:
            wiring.connect(m, fifo.r_stream, wiring.flipped(self.o))
            wiring.connect(m, wiring.flipped(self.i), transmitter.i)
        m.d.comb += [
            receiver.rx.eq(self.rx),
            self.tx.eq(transmitter.tx),
            fifo.w_data.eq(receiver.data),
            fifo.w_en.eq(receiver.valid),
        ]
        m.d.sync += self.error.eq(receiver.error | (receiver.valid & ~fifo.w_rdy))
        return m
