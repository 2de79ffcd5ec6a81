"""The whole board above its byte-stream PHY: host link and engine."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .engine import READ_DECISION, READ_LATENCY, Engine
from .link.buffer import Buffer
from .link.cobs import CobsDecoder, CobsEncoder, Last
from .link.controller import Controller
from .link.frames import FrameReceiver, FrameTransmitter
from .link.gate import LEASE_CYCLES, Gate

__all__ = ["Top"]

# Ports of the engine, by the side that drives them.
TO_ENGINE = (
    "write_en", "write_space", "write_addr", "write_byte", "write_data", "read_en", "read_addr",
    "start", "first", "count", "counter_addr", "clear",
)
FROM_ENGINE = (
    "write_ready", "write_idle", "read_ready", "read_data", "done", "cycles", "error", "layer",
    "counter_data",
)


class Top(wiring.Component):
    """An engine behind a host link.

    Parameters
    ----------
    config : EngineConfig
        Configuration of the engine.
    build_sha256 : :class:`bytes`
        Hash of what the build was made from, 32 bytes; HELLO tells it.
    board : :class:`str`
        Name that HELLO tells, at most 16 ASCII characters.
    engine : :class:`~.engine.Engine`, optional
        An engine with the same ports, for tests of the link alone.
    lease_cycles : :class:`int`
        After how long a silent owner may lose the board, see :class:`~.link.gate.Gate`.

    Members
    -------
    i : :py:`In(stream.Signature(8))`
        Bytes from the host.
    o : :py:`Out(stream.Signature(8))`
        Bytes to the host.
    active : :py:`Out(1)`
        A frame is being received, worked on or answered, or the engine runs.
    """

    def __init__(self, config, build_sha256, *, board="virtual", engine=None,
                 lease_cycles=LEASE_CYCLES):
        self.controller = Controller(
            config, read_latency=READ_LATENCY - READ_DECISION, build_sha256=build_sha256,
            board=board)
        self.engine = Engine(config) if engine is None else engine
        self.gate = Gate(lease_cycles=lease_cycles, compact=bool(config.compact))
        super().__init__({
            "i": In(stream.Signature(8)),
            "o": Out(stream.Signature(8)),
            "active": Out(1),
        })

    def elaborate(self, platform):
        m = Module()

        m.submodules.decoder = decoder = CobsDecoder()
        m.submodules.receiver = receiver = FrameReceiver()
        m.submodules.controller = controller = self.controller
        m.submodules.engine = engine = self.engine
        m.submodules.gate = gate = self.gate
        m.submodules.transmitter = transmitter = FrameTransmitter()
        m.submodules.encoder = encoder = CobsEncoder()

        wiring.connect(m, wiring.flipped(self.i), decoder.i)
        wiring.connect(m, decoder.o, receiver.i)
        wiring.connect(m, controller.header, transmitter.header)
        if self.controller.config.compact:
            wiring.connect(m, receiver.payload, controller.payload)
            wiring.connect(m, controller.reply, transmitter.i)
            wiring.connect(m, transmitter.o, encoder.i)
        else:
            # What is ready or valid must not depend on what is there within a cycle.
            m.submodules.request_buffer = request = Buffer(8)
            m.submodules.reply_buffer = reply = Buffer(8)
            m.submodules.frame_buffer = frame = Buffer(Last)
            wiring.connect(m, receiver.payload, request.i)
            wiring.connect(m, request.o, controller.payload)
            wiring.connect(m, controller.reply, reply.i)
            wiring.connect(m, reply.o, transmitter.i)
            wiring.connect(m, transmitter.o, frame.i)
            wiring.connect(m, frame.o, encoder.i)
            m.d.comb += request.clear.eq(controller.release)
        wiring.connect(m, encoder.o, wiring.flipped(self.o))
        m.d.comb += [
            controller.frame.eq(receiver.frame),
            controller.frame.nak.eq(gate.nak),
            gate.frame.eq(receiver.frame),
            gate.valid.eq(receiver.valid),
            gate.release.eq(controller.release),
            gate.run.eq(controller.start),
            gate.epoch.eq(controller.epoch),
            gate.busy.eq(engine.busy),
            controller.valid.eq(receiver.valid),
            receiver.release.eq(controller.release),
        ]
        for name in TO_ENGINE:
            m.d.comb += getattr(engine, name).eq(getattr(controller, name))
        for name in FROM_ENGINE:
            m.d.comb += getattr(controller, name).eq(getattr(engine, name))

        m.d.sync += self.active.eq(
            ~(receiver.idle & controller.idle & transmitter.idle & encoder.idle) | engine.busy)

        return m
