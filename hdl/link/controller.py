"""Does what the host's frames ask of the engine; every block gets exactly one answer."""

import enum

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from trivet.hdl.expand import PORTS, SETUP_BYTES, Expander
from trivet.hdl.loader import COUNT_BITS, Area, Extent, Loader, Peeker
from trivet.hdl.mover import Mover

from .frames import PAYLOAD_BYTES, Frame, Nak, Reply, Type

__all__ = ["BOARD_BYTES", "COUNTERS_MAX", "Controller", "Status"]

BOARD_BYTES = 16
COUNTERS_MAX = 64  # instructions whose counters fit one frame
COUNTER_BYTES = 12
LOAD_HEADER_BYTES = 8
RUNS = 2  # accepted and not answered; HELLO tells it
ACT_SPACE = 0
EXPAND_SPACE = 6  # in LOAD: activation memory by way of the expander
ARGUMENT_BYTES = 10  # the longest fixed part of a payload (PEEK's)


class Status(enum.IntEnum):
    """How a run ended, in DONE."""

    OK = 0
    ABORTED = 1  # by RESET


# A run as its answer needs it.
Run = data.StructLayout({
    "seq": 16, "stream": 8, "ticket": 32, "cycles": 32, "aborted": 1, "fault": 1, "layer": 16,
})


class Fault(enum.IntEnum):
    """What stopped the engine, in ERROR."""

    ENGINE = 1  # invalid instruction, or a layer that did not end in its bound


class Controller(wiring.Component):
    """Takes requests, drives the engine, answers.

    One request is worked on at a time. While the engine runs, only what would change a run is
    refused as BUSY: a LOAD into other than activation memory, and a third RUN; a second one waits
    for the first and follows without a gap. It is the host's duty to touch no tensor of a run that
    is not answered. Runs are answered in their order. RESET stops all: RUN is answered with
    ``Status.ABORTED``, then RESET with ACK; so is a RUN behind one that failed. A request that is
    refused changes nothing; only an expanded LOAD whose setup leads out of the memory has written
    what lies inside. RUN repeated with the sequence number and ticket of one of the last two, when
    that has ended, is not run again (it may have overwritten its own inputs): the answer is given
    once more.

    Parameters
    ----------
    config : EngineConfig
        Configuration of the engine.
    read_latency : :class:`int`
        Cycles from the engine's ``read_ready`` to its ``read_data``.
    build_sha256 : :class:`bytes`
        Identity of the build, 32 bytes.
    board : :class:`str`
        Name of the board, at most 16 ASCII characters.

    Members
    -------
    frame, valid, payload, release
        From and to :class:`~.frames.FrameReceiver`.
    header, reply
        To :class:`~.frames.FrameTransmitter`.
    write_en ... clear
        To the engine, named as there.
    idle : :py:`Out(1)`
        Nothing is being worked on and no run is under way.
    epoch : :py:`Out(32)`
        Low byte: a count of RESETs that is 0 before the first one only. Above it, stream and number
        of the last one, by which its host knows it. Compact engines have the count alone.
    """

    def __init__(self, config, *, read_latency, build_sha256, board):
        name = board.encode("ascii")
        if len(build_sha256) != 32:
            raise ValueError(
                f"controller: build_sha256 has {len(build_sha256)} bytes, must have 32"
            )
        if len(name) > BOARD_BYTES:
            raise ValueError(
                f"controller: board name {board!r} has {len(name)} characters, "
                f"at most {BOARD_BYTES}"
            )
        self.config = config
        self.slots = 1 if config.compact else RUNS  # compact engines queue no run
        self.read_latency = read_latency
        self.greeting = (
            build_sha256
            + bytes.fromhex(config.sha256)
            + name.ljust(BOARD_BYTES, b"\0")
            + config.isa.to_bytes(2, "little")
            + bytes([1, self.slots])
        )
        super().__init__(
            {
                "frame": In(Frame),
                "valid": In(1),
                "payload": In(stream.Signature(8)),
                "release": Out(1),
                "header": Out(stream.Signature(Reply)),
                "reply": Out(stream.Signature(8)),
                "write_en": Out(1),
                "write_space": Out(3),
                "write_addr": Out(16),
                "write_byte": Out(8),
                "write_data": Out(8),
                "write_ready": In(1),
                "write_idle": In(1),
                "read_en": Out(1),
                "read_addr": Out(16),
                "read_ready": In(1),
                "read_data": In(8 * config.word_bytes),
                "start": Out(1),
                "first": Out(16),
                "count": Out(16),
                "done": In(1),
                "cycles": In(32),
                "error": In(1),
                "layer": In(16),
                "counter_addr": Out(8),
                "counter_data": In(8 * COUNTER_BYTES),
                "clear": Out(1),
                "idle": Out(1),
                "epoch": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()

        if self.config.compact:
            m.submodules.mover = mover = Mover(self.config, self.read_latency)
            extent, loader, peeker = mover.extent, mover.loader, mover.peeker
        else:
            m.submodules.extent = extent = Extent(self.config)
            m.submodules.loader = loader = Loader(self.config)
            m.submodules.peeker = peeker = Peeker(self.config, self.read_latency)
        if self.config.expander:
            m.submodules.expander = expander = Expander(self.config)
        else:
            expander = PORTS.create()
        m.submodules.greeting = greeting = memory.Memory(
            shape=8, depth=len(self.greeting), init=self.greeting,
            # Else yosys makes it of LUTs, of which a small engine's board has few.
            attrs={"rom_style": "block"} if self.config.compact else {},
        )
        greeting_port = greeting.read_port()

        # The fixed part of the request's payload, its last byte on top.
        arguments = Signal(8 * ARGUMENT_BYTES)
        expected = Signal(range(ARGUMENT_BYTES + 1))  # bytes of that part
        missing = Signal(range(ARGUMENT_BYTES + 1))
        is_exact = Signal()  # nothing may follow that part
        is_known = Signal()
        # The request's type, as registers: a frame is looked at two cycles after it came.
        kinds = {kind: Signal(name=f"is_{kind.name.lower()}") for kind in Type}
        m.d.sync += [flag.eq(self.frame.type == kind) for kind, flag in kinds.items()]
        known_type = Signal()
        usual = Signal(4)
        usual_answer = Signal(4)
        has_arguments = Signal()

        # The two runs last asked for; bit k of the flags is about run k.
        slots = self.slots
        runs = Array(Signal(Run, name=f"run{k}") for k in range(slots))
        running = Signal(slots)  # under way, or waiting for that
        ended = Signal(slots)  # its answer is due
        answered = Signal(slots)  # its answer can be given again
        # Where no run follows another, the engine keeps what the last one's answer needs.
        outcomes = runs
        if slots == 1:
            outcomes = Array([Signal(Run, name="outcome")])
            m.d.comb += [
                outcomes[0].cycles.eq(self.cycles),
                outcomes[0].fault.eq(self.error),
                outcomes[0].layer.eq(self.layer),
            ]
        turn = Signal()  # the older of the two, whose place the next one takes
        under_way = Signal()
        due = Signal()  # whose answer is next
        shown = Signal()  # which one is being answered
        repeated = Signal()  # the one that the request at hand asks for again
        if slots > 1:
            m.d.comb += [
                under_way.eq(Mux(running.all(), turn, running[1])),
                due.eq(Mux(ended.all(), turn, ended[1])),
            ]

        # The answer being sent.
        answers = Signal(4)  # Type; DONE stands for ERROR, too
        reply_type = Signal(8)
        reason = Signal(8)
        gives_data = Signal()
        gives_greeting = Signal()
        gives_counters = Signal()
        gives_run = Signal()
        gives_fault = Signal(reset_less=True)
        is_request = Signal()  # it answers the frame that the receiver holds
        length = Signal(COUNT_BITS)
        left = Signal(COUNT_BITS)
        body = Signal(8 * COUNTER_BYTES)  # short answers; one instruction's counters
        body_left = Signal(range(COUNTER_BYTES + 1))  # of an instruction's counters
        in_body = Signal()  # bytes are given
        in_arguments = Signal()
        moves = Signal()  # one is
        fills = Signal()  # `body` is filled, at the start of HEADER ...
        fills_counters = Signal()  # ... and in COUNTER WAIT
        from_greeting = Signal()
        none_left = Signal(reset_less=True)
        greeting_index = Signal(range(len(self.greeting) + 1))
        epoch = Signal(8 if self.config.compact else 32)
        count = epoch[:8]
        next_count = Mux(count == 0xFF, 1, count + 1)[:8]
        m.d.comb += self.epoch.eq(epoch)

        # Views of the arguments, which arrive lowest byte first and are shifted down from the top.
        load = arguments[8 * (ARGUMENT_BYTES - LOAD_HEADER_BYTES) :]
        peek = arguments
        run = arguments[8 * (ARGUMENT_BYTES - 8) :]
        counters = arguments[8 * (ARGUMENT_BYTES - 4) :]
        counter_index = Signal(16)
        area = Signal(Area)
        starts_load = Signal()
        starts_peek = Signal()
        m.d.comb += [
            extent.area.eq(area),
            loader.area.eq(area),
            loader.start.eq(starts_load),
            peeker.start.eq(starts_peek),
            peeker.area.eq(area),
            expander.address.eq(area.address),
            expander.count.eq(area.count - SETUP_BYTES),
            self.write_en.eq(loader.write_en | expander.write_en),
            self.write_space.eq(Mux(expander.write_en, 0, loader.write_space)),
            self.write_addr.eq(Mux(expander.write_en, expander.write_addr, loader.write_addr)),
            self.write_byte.eq(Mux(expander.write_en, expander.write_byte, loader.write_byte)),
            self.write_data.eq(Mux(expander.write_en, expander.write_data, loader.write_data)),
            loader.i.payload.eq(self.payload.payload),
            expander.i.payload.eq(self.payload.payload),
            self.read_en.eq(peeker.read_en),
            self.read_addr.eq(peeker.read_addr),
            peeker.read_ready.eq(self.read_ready),
            peeker.read_data.eq(self.read_data),
            loader.write_ready.eq(self.write_ready),
            loader.write_idle.eq(self.write_idle),
            expander.write_ready.eq(self.write_ready),
            expander.write_idle.eq(self.write_idle),
            self.counter_addr.eq(counter_index),
            greeting_port.addr.eq(greeting_index),
            greeting_port.en.eq(0),
            self.first.eq(run[32:48]),
            self.count.eq(run[48:64]),
            self.header.payload.type.eq(reply_type),
            self.header.payload.stream.eq(Mux(is_request, self.frame.stream, runs[shown].stream)),
            self.header.payload.seq.eq(Mux(is_request, self.frame.seq, runs[shown].seq)),
            self.header.payload.length.eq(length),
            # Loader and expander take bytes only after their start, one of them at a time.
            loader.i.valid.eq(self.payload.valid),
            expander.i.valid.eq(self.payload.valid),
            self.payload.ready.eq(in_arguments | loader.i.ready | expander.i.ready),
        ]

        with m.Switch(self.frame.type):
            for kind, size, exact, reply in (
                (Type.HELLO, 0, 1, Type.HELLO),
                (Type.RESET, 0, 1, Type.ACK),
                (Type.LOAD, LOAD_HEADER_BYTES, 0, Type.ACK),
                (Type.RUN, 8, 1, Type.DONE),
                (Type.COUNTERS, 4, 1, Type.COUNTERS),
                (Type.PEEK, 10, 1, Type.DATA),
            ):
                with m.Case(kind):
                    m.d.comb += [
                        is_known.eq(1),
                        expected.eq(size),
                        is_exact.eq(exact),
                        usual.eq(reply),
                    ]

        def abort(k):
            m.d.sync += [
                runs[k].aborted.eq(1),
                runs[k].cycles.eq(0),
                runs[k].fault.eq(0),
            ]

        def matches(k):
            """RUN at hand repeats run ``k``."""
            return ((runs[k].seq == self.frame.seq) & (runs[k].stream == self.frame.stream)
                    & (runs[k].ticket == run[0:32]))

        # The bytes of a LOAD are where they belong; or else led out of the memory.
        is_stored = Signal()
        is_out = Signal()
        m.d.sync += [
            is_stored.eq(loader.done | expander.done),
            is_out.eq(expander.done & expander.refused),
        ]

        # What DECIDE makes of that and of the runs. A run that ends between DECIDE and CHECK is
        # still taken for one under way; what is done then is right nevertheless.
        is_refused = Signal()
        is_again = Signal()
        is_under_way = Signal()
        in_check = Signal()
        accepts = Signal()  # RUN, in CHECK

        # Pulses out of here are registers. A frame is looked at in the cycles after it came, not
        # in the one in which it is released nor in the next, where the receiver still shows it.
        release = Signal()
        released = Signal()
        present = Signal()
        is_short = Signal()  # or too long
        m.d.comb += self.release.eq(released)
        m.d.sync += [
            self.start.eq(0),
            self.clear.eq(0),
            fills.eq(0),
            fills_counters.eq(0),
            in_check.eq(0),
            accepts.eq(0),
            starts_load.eq(0),
            starts_peek.eq(0),
            released.eq(release),
            present.eq(self.valid & ~release & ~released),
            known_type.eq(is_known),
            usual_answer.eq(usual),
            has_arguments.eq(expected != 0),
            is_short.eq((self.frame.length < expected)
                        | (is_exact & (self.frame.length != expected))),
        ]

        # What a request says, registered while it is complete and DECIDE not yet come.
        known = answered | running | ended
        match = Signal(slots)
        is_beyond = Signal()  # RUN
        is_outside = Signal()  # PEEK
        is_many = Signal()  # COUNTERS
        is_spread = Signal()  # LOAD
        is_tight = Signal()  # ... without room for the setup
        is_act = Signal()  # ... into activation memory
        m.d.sync += [
            match.eq(Cat(matches(k) for k in range(slots))),
            is_beyond.eq(run[32:48] >= self.config.instructions),
            is_outside.eq((peek[64:80] > PAYLOAD_BYTES) | (peek[0:8] != 0)),
            is_many.eq((counters[16:32] > COUNTERS_MAX)
                       | (counters[0:16] + counters[16:32] > self.config.instructions)),
            is_spread.eq((load[0:8] == EXPAND_SPACE) & bool(self.config.expander)),
            is_tight.eq(self.frame.length < LOAD_HEADER_BYTES + SETUP_BYTES),
            is_act.eq((load[0:8] == ACT_SPACE) | (load[0:8] == EXPAND_SPACE)),
        ]
        if slots > 1:
            m.d.comb += repeated.eq(match[1] & known[1])
        is_known_run = Signal()
        was_answered = Signal()
        is_taken = Signal()  # the place of the next run
        m.d.sync += [
            is_known_run.eq(known.bit_select(repeated, 1) & match.bit_select(repeated, 1)),
            was_answered.eq(answered.bit_select(repeated, 1)),
            is_taken.eq((running | ended).bit_select(turn, 1)),
        ]
        refusal = Signal(Nak)  # 0: none
        m.d.sync += refusal.eq(0)
        with m.If(kinds[Type.LOAD]):
            with m.If(running.any() & ~is_act):
                m.d.sync += refusal.eq(Nak.BUSY)
            with m.Elif(is_spread & is_tight):
                m.d.sync += refusal.eq(Nak.LENGTH)
        with m.Elif(kinds[Type.RUN]):
            with m.If(is_known_run):
                m.d.sync += refusal.eq(Mux(was_answered, 0, Nak.BUSY))
            with m.Elif(is_beyond):
                m.d.sync += refusal.eq(Nak.RANGE)
            with m.Elif(is_taken):
                m.d.sync += refusal.eq(Nak.BUSY)
        with m.Elif((kinds[Type.PEEK] & is_outside) | (kinds[Type.COUNTERS] & is_many)):
            m.d.sync += refusal.eq(Nak.RANGE)

        with m.If(in_check):
            m.d.sync += [
                area.space.eq(Mux(kinds[Type.PEEK], peek[0:8], load[0:8])),
                area.run.eq(Mux(kinds[Type.PEEK], peek[16:32], load[16:32])),
                area.address.eq(Mux(kinds[Type.PEEK], peek[32:64], load[32:64])),
                area.count.eq(Mux(kinds[Type.PEEK], peek[64:80],
                                  self.frame.length - LOAD_HEADER_BYTES)),
                counter_index.eq(counters[0:16]),
                greeting_index.eq(0),
            ]
        with m.If(~in_arguments):
            m.d.sync += missing.eq(expected)
        with m.Elif(self.payload.valid):
            m.d.sync += [
                arguments.eq(Cat(arguments[8:], self.payload.payload)),
                missing.eq(missing - 1),
            ]

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.idle.eq(~self.valid & ~running.any() & ~ended.any())
                m.d.sync += [answers.eq(Type.DONE), shown.eq(due), is_request.eq(0)]
                with m.If(ended.any()):
                    m.d.sync += [
                        ended.bit_select(due, 1).eq(0),
                        answered.bit_select(due, 1).eq(1),
                    ]
                    m.next = "ANSWER"
                with m.Elif(present):
                    m.next = "FRAME"
            with m.State("FRAME"):
                m.d.sync += [answers.eq(Type.NAK), is_request.eq(1)]
                m.next = "ANSWER"
                with m.If(self.frame.nak != 0):
                    m.d.sync += reason.eq(self.frame.nak)
                with m.Elif(~known_type):
                    m.d.sync += reason.eq(Nak.TYPE)
                with m.Elif(is_short):
                    m.d.sync += reason.eq(Nak.LENGTH)
                with m.Elif(has_arguments):
                    m.d.sync += in_arguments.eq(1)
                    m.next = "ARGUMENTS"
                with m.Else():
                    m.next = "COMPARE"
            with m.State("ARGUMENTS"), m.If(self.payload.valid & (missing == 1)):
                m.d.sync += in_arguments.eq(0)
                m.next = "COMPARE"
            with m.State("COMPARE"):
                m.next = "MATCH"
            with m.State("MATCH"):
                m.next = "JUDGE"
            with m.State("JUDGE"):
                m.next = "DECIDE"
            with m.State("DECIDE"):
                m.d.sync += [
                    answers.eq(Mux(refusal == 0, usual_answer, Type.NAK)),
                    # What is refused later is out of range.
                    reason.eq(Mux(refusal == 0, Nak.RANGE, refusal)),
                    shown.eq(repeated),
                    is_refused.eq(refusal != 0),
                    is_again.eq(is_known_run),
                    is_under_way.eq(running.any()),
                    in_check.eq(1),
                    accepts.eq(kinds[Type.RUN] & ~is_known_run & (refusal == 0)),
                ]
                m.next = "CHECK"
            with m.State("CHECK"):
                m.next = "ANSWER"
                with m.If(is_refused):
                    pass
                with m.Elif(kinds[Type.RESET]):
                    m.d.sync += self.clear.eq(1)
                    with m.If(is_under_way):
                        m.next = "CLEAR"
                    with m.Else():
                        m.d.sync += [
                            epoch.eq(Cat(next_count, self.frame.stream, self.frame.seq)),
                            answered.eq(0),
                        ]
                with m.Elif(kinds[Type.LOAD] & is_spread):
                    m.next = "EXPAND START"
                with m.Elif(kinds[Type.LOAD] | kinds[Type.PEEK]):
                    m.next = "EXTENT"
                with m.Elif(kinds[Type.RUN] & ~is_again):
                    m.next = "IDLE"
            with m.State("CLEAR"):
                # The engine stops in the next cycle; what it tells until then is seen in the one
                # after that.
                m.next = "CLEARED"
            with m.State("CLEARED"):
                m.next = "ABORT"
            with m.State("ABORT"):
                # First the runs' answers, then this request is looked at again.
                m.d.sync += [
                    running.eq(0),
                    ended.eq(ended | running),
                ]
                for k in range(slots):
                    with m.If(running[k]):
                        abort(k)
                m.next = "IDLE"
            with m.State("EXTENT"):
                # ``area`` is registered: the walk starts here and not in CHECK.
                m.d.comb += extent.start.eq(1)
                m.next = "EXTENT WAIT"
            with m.State("EXTENT WAIT"), m.If(extent.done):
                m.next = "ANSWER"
                with m.If(~extent.inside):
                    m.d.sync += answers.eq(Type.NAK)
                with m.Elif(kinds[Type.LOAD]):
                    m.d.sync += starts_load.eq(1)
                    m.next = "STORE"
                with m.Else():
                    m.d.sync += starts_peek.eq(1)
            with m.State("EXPAND START"):
                m.d.comb += expander.start.eq(1)
                m.next = "STORE"
            with m.State("STORE"), m.If(is_stored):
                with m.If(is_out):
                    m.d.sync += answers.eq(Type.NAK)
                m.next = "ANSWER"
            with m.State("ANSWER"):
                is_fault = outcomes[shown].fault
                gives_run_now = answers == Type.DONE
                m.d.sync += [
                    reply_type.eq(Mux(gives_run_now & is_fault, Type.ERROR, answers)),
                    gives_data.eq(answers == Type.DATA),
                    gives_greeting.eq(answers == Type.HELLO),
                    from_greeting.eq(answers == Type.HELLO),
                    gives_counters.eq(answers == Type.COUNTERS),
                    gives_run.eq(gives_run_now),
                    gives_fault.eq(gives_run_now & is_fault),
                    fills.eq(1),
                ]
                m.next = "HEADER"
            with m.State("HEADER"):
                # The ROM answers a cycle late: each byte is asked for as the one before is given.
                m.d.comb += greeting_port.en.eq(1)
                with m.If(self.header.valid & self.header.ready):
                    m.d.sync += [
                        self.header.valid.eq(0),
                        greeting_index.eq(1),
                        in_body.eq(~none_left & ~gives_counters),
                    ]
                    m.next = "BODY"
            with m.State("BODY"):
                with m.If(none_left):
                    m.d.comb += release.eq(is_request)
                    m.next = "IDLE"
                with m.Elif(gives_counters & ~in_body):
                    m.next = "COUNTER"
            with m.State("COUNTER"):
                # The address is out; the counters follow two cycles later.
                m.next = "COUNTER READ"
            with m.State("COUNTER READ"):
                m.d.sync += fills_counters.eq(1)
                m.next = "COUNTER WAIT"
            with m.State("COUNTER WAIT"):
                m.next = "BODY"

        with m.If(accepts):
            m.d.comb += release.eq(1)
            m.d.sync += [
                self.start.eq(1),
                turn.eq(~turn if slots > 1 else 0),
                running.bit_select(turn, 1).eq(1),
                answered.bit_select(turn, 1).eq(0),
                runs[turn].seq.eq(self.frame.seq),
                runs[turn].stream.eq(self.frame.stream),
                runs[turn].ticket.eq(run[0:32]),
            ]

        # The answer, told from registers: the way to its bytes and to those who give them is short.
        size = Signal(COUNT_BITS)
        with m.Switch(answers):
            with m.Case(Type.NAK):
                m.d.comb += size.eq(1)
            with m.Case(Type.HELLO):
                m.d.comb += size.eq(len(self.greeting) + 4)
            with m.Case(Type.DATA):
                m.d.comb += size.eq(area.count)
            with m.Case(Type.COUNTERS):
                # COUNTER_BYTES times, without a multiplier.
                many = counters[16 : 16 + COUNT_BITS - 4]
                m.d.comb += size.eq((many << 3) + (many << 2))
            with m.Case(Type.DONE):
                m.d.comb += size.eq(Mux(gives_fault, 3, 12))
        short = body[:8]
        if self.config.compact and not self.config.counters:
            # Chosen byte by byte, as nothing of it changes meanwhile: no copy is kept.
            at = Signal(range(COUNTER_BYTES))
            short = Signal(8)
            result = Cat(runs[shown].ticket, runs[shown].aborted, C(0, 31), outcomes[shown].cycles)
            fault = Cat(C(Fault.ENGINE, 8), outcomes[shown].layer)
            with m.If(fills):
                m.d.sync += at.eq(0)
            with m.Elif(moves & ~from_greeting):
                m.d.sync += at.eq(at + 1)
            with m.If(gives_greeting):
                m.d.comb += short.eq(Mux(at == 0, epoch, 0))
            with m.Elif(gives_run):
                m.d.comb += short.eq(Mux(gives_fault, fault.word_select(at[:2], 8),
                                         result.word_select(at, 8)))
            with m.Elif(~gives_counters):
                m.d.comb += short.eq(reason)
        m.d.comb += [
            self.reply.payload.eq(Mux(gives_data, peeker.o.payload,
                                      Mux(from_greeting, greeting_port.data, short))),
            self.reply.valid.eq(in_body & (peeker.o.valid | ~gives_data)),
            peeker.o.ready.eq(in_body & gives_data & self.reply.ready),
            moves.eq(self.reply.valid & self.reply.ready),
        ]
        with m.If(moves):
            m.d.comb += greeting_port.en.eq(1)
            m.d.sync += [
                greeting_index.eq(greeting_index + 1),
                left.eq(left - 1),
                none_left.eq(left == 1),
                body_left.eq(body_left - 1),
            ]
            with m.If(left == 5):
                m.d.sync += from_greeting.eq(0)
            with m.If((left == 1) | (gives_counters & (body_left == 1))):
                m.d.sync += in_body.eq(0)
        shown_run = runs[shown]
        with m.If(fills):
            m.d.sync += [
                length.eq(size),
                left.eq(size),
                none_left.eq(size == 0),
                self.header.valid.eq(1),
            ]
            # Bytes beyond the answer's are any.
            m.d.sync += body.eq(Cat(
                Mux(gives_greeting, epoch,
                    Mux(gives_fault, Cat(C(Fault.ENGINE, 8), outcomes[shown].layer),
                        shown_run.ticket))[:32],
                shown_run.aborted, C(0, 31), outcomes[shown].cycles,
            ))
            with m.If(~gives_greeting & ~gives_run):
                m.d.sync += body[:8].eq(reason)
        with m.Elif(fills_counters):
            m.d.sync += [
                body.eq(self.counter_data),
                body_left.eq(COUNTER_BYTES),
                counter_index.eq(counter_index + 1),
                in_body.eq(1),
            ]
        with m.Elif(moves & ~from_greeting):
            m.d.sync += body.eq(body >> 8)

        # What the engine tells is looked at a cycle later; `cycles` stays. What waits is dropped
        # when a run fails, but not what is started in the cycle that tells so.
        is_done = Signal(slots)
        is_error = Signal()
        layer = Signal(16, reset_less=True)
        drops = Signal()
        m.d.sync += [
            is_done.eq(running & ((self.done & C(1)) << under_way)),
            is_error.eq(self.error),
            layer.eq(self.layer),
            drops.eq(self.done & self.error & running.all() & ~self.start & (slots > 1)),
        ]
        # After the machine above: a run that ends in the cycle in which it is aborted has ended
        # well.
        for k in range(slots):
            with m.If(is_done[k]):
                m.d.sync += [
                    running[k].eq(0),
                    ended[k].eq(1),
                    runs[k].aborted.eq(0),
                    runs[k].cycles.eq(self.cycles),
                    runs[k].fault.eq(is_error),
                    runs[k].layer.eq(layer),
                ]
            with m.Elif(drops):
                m.d.sync += [running[k].eq(0), ended[k].eq(1)]
                abort(k)

        return m
