"""A board's design: UART and engine (:class:`BoardCore`), clock and pins (:class:`BoardTop`)."""

from amaranth import *
from amaranth.lib import io, wiring
from amaranth.lib.wiring import In, Out

from trivet.hdl.top import Top

from .clocks import ClockSource
from .uart import Uart

__all__ = ["BoardCore", "BoardTop", "Lights"]


class Lights(wiring.Component):
    """What people see, slow enough for them.

    Members
    -------
    active, error : :py:`In(1)`
        Pulses of a cycle and longer.
    alive_light : :py:`Out(1)`
        Blinks about once a second: clock and reset are good.
    active_light : :py:`Out(1)`
        Something happened in the last moment, 1/32 of a blink.
    error_light : :py:`Out(1)`
        An error since the last reset.
    """

    def __init__(self, clock_hz):
        self.width = max(6, (clock_hz - 1).bit_length())
        super().__init__({
            "active": In(1),
            "error": In(1),
            "alive_light": Out(1),
            "active_light": Out(1),
            "error_light": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        count = Signal(self.width)
        moment = Signal()
        last = Signal()
        seen = Signal()
        m.d.comb += self.alive_light.eq(count[-1])
        m.d.sync += [
            count.eq(count + 1),
            last.eq(count[-6]),
            moment.eq(last & ~count[-6]),
            seen.eq((seen & ~moment) | self.active),
            self.error_light.eq(self.error_light | self.error),
        ]
        with m.If(moment):
            m.d.sync += self.active_light.eq(seen)
        return m


class BoardCore(wiring.Component):
    """Everything in the ``sync`` domain: UART, host link, engine.

    Parameters
    ----------
    config : EngineConfig
        Configuration of the engine.
    build_sha256 : :class:`bytes`
        Identity of the build, 32 bytes.
    board : :class:`str`
        Name that HELLO tells.
    clock_hz, baud : :class:`int`
        Clock of ``sync``, rate of the line.
    receive_depth : :class:`int`
        Bytes of the FIFO behind the receiver.

    Members
    -------
    rx : :py:`In(1)`, tx : :py:`Out(1)`
        The line to the host.
    alive_light, active_light, error_light : :py:`Out(1)`
        See :class:`Lights`. Active: a frame or the engine is at work. Error: a byte of the line was
        lost (the frame's CRC tells the host).
    """

    def __init__(self, config, build_sha256, *, board, clock_hz, baud, receive_depth):
        self.top = Top(config, build_sha256, board=board)
        self.uart = Uart(clock_hz, baud, receive_depth, buffered=not config.compact)
        self.lights = Lights(clock_hz)
        super().__init__({
            "rx": In(1, init=1),
            "tx": Out(1, init=1),
            "alive_light": Out(1),
            "active_light": Out(1),
            "error_light": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.uart = uart = self.uart
        m.submodules.top = top = self.top
        m.submodules.lights = lights = self.lights
        wiring.connect(m, uart.o, top.i)
        wiring.connect(m, top.o, uart.i)
        m.d.comb += [
            uart.rx.eq(self.rx),
            self.tx.eq(uart.tx),
            lights.active.eq(top.active),
            lights.error.eq(uart.error),
            self.alive_light.eq(lights.alive_light),
            self.active_light.eq(lights.active_light),
            self.error_light.eq(lights.error_light),
        ]
        return m


class BoardTop(Elaboratable):
    """The bitstream's contents, for a platform of Amaranth.

    Parameters
    ----------
    config, build_sha256
        As for :class:`BoardCore`.
    board : :class:`trivet.boards.board.Board`
        With ``wiring``, ``clock_hz`` and ``toolchain``.
    """

    def __init__(self, config, build_sha256, board):
        self.board = board
        wiring = board.wiring
        self.core = BoardCore(
            config, build_sha256, board=board.name, clock_hz=board.clock_hz, baud=wiring.baud,
            receive_depth=wiring.receive_depth)

    def elaborate(self, platform):
        m = Module()
        m.domains.sync = ClockDomain()
        wires = self.board.wiring
        family = wires.clocking or self.board.toolchain.family
        if platform.default_clk is None:  # the processor beside the logic gives the clock
            oscillator = platform.oscillator(m, self.board.oscillator_hz)
        else:
            pin = platform.request(platform.default_clk, dir="-")
            if family == "ice40" and self.board.clock_hz != self.board.oscillator_hz:
                oscillator = pin.io
            else:
                m.submodules.oscillator = buffer = io.Buffer("i", pin)
                oscillator = buffer.i
        m.submodules.clock = ClockSource(
            family, oscillator, self.board.oscillator_hz, self.board.clock_hz)
        m.submodules.core = core = self.core

        port = self.ports(platform, "uart", wires.uart)
        m.submodules.rx = rx = io.Buffer("i", port.rx)
        m.submodules.tx = tx = io.Buffer("o", port.tx)
        m.d.comb += [core.rx.eq(rx.i), tx.o.eq(core.tx)]
        lights = (core.alive_light, core.active_light, core.error_light)
        parts = {}  # a resource is requested once
        for (path, number), light in zip(wires.leds, lights, strict=False):
            name, _, color = path.partition(".")
            if color:
                if (name, number) not in parts:
                    parts[name, number] = self.ports(platform, name, number)
                port = getattr(parts[name, number], color)
            else:
                port = platform.request(name, number, dir="-")
            buffer = io.Buffer("o", port)
            m.submodules[f"light_{name}_{number}{color}"] = buffer
            m.d.comb += buffer.o.eq(light)
        return m

    @staticmethod
    def ports(platform, name, number):
        """A resource's ports, with the platform's buffers left out."""
        ios = platform.lookup(name, number).ios
        return platform.request(name, number, dir={sub.name: "-" for sub in ios})
