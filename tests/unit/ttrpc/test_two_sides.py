"""A plugin's trunk and a runtime's, talking to each other in memory: any calls, any answers, any pieces, any order."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from nri_cpu.ttrpc import Answer, Call, LocalError, Trunk
from nri_cpu.ttrpc.frames import MAX_DATA
from tests.unit.ttrpc.factory import REQUEST, frame, mux, oversize, request

SIDES = ("plugin", "runtime")
# Small, around what fits into one mux frame, and more than one read.
SIZES = st.one_of(st.integers(0, 50), st.integers(4060, 4110), st.just(300_000))
# What the side that calls on a connection may not send there: each is refused, on a stream that nobody waits for.
# Drawn by name: hypothesis keeps the text of all that it draws.
ILLEGAL = {
    "id 0": request(0),
    "even id": request(2, payload=b"x" * 5000),
    "does not parse": frame(4, REQUEST, b"\xff"),
    "oversize": oversize(6),
    "data": frame(8, 3, b"stray"),
    "unknown kind": frame(10, 99),
}


@dataclass
class Side:
    """One trunk, what is on the way to it, and what it must see."""

    trunk: Trunk
    calls_on: int  # the connection where it calls
    pipe: bytearray = field(default_factory=bytearray)
    due_calls: list[tuple[int, bytes]] = field(default_factory=list)  # in the order of calling
    due_answers: dict[int, tuple[bytes, int]] = field(default_factory=dict)  # payload and code; in any order
    forgotten: set[int] = field(default_factory=set)

    def see(self, data: bytes) -> list[Call]:
        calls = []
        for event in self.trunk.receive(data):
            if isinstance(event, Call):
                assert (event.stream, event.payload) == self.due_calls.pop(0)
                assert (event.service, event.method, event.timeout) == ("s", "m", 2.0)
                calls.append(event)
            else:
                self.see_answer(event)
        return calls

    def see_answer(self, answer: Answer) -> None:
        assert answer.stream not in self.forgotten
        payload, code = self.due_answers.pop(answer.stream)
        assert answer.payload == payload
        assert (answer.error.code if answer.error else 0) == code


class TwoSides(RuleBasedStateMachine):
    """Rules are what either side may do; `unanswered` are the calls that have arrived, and at which side."""

    made = Bundle("made")

    def __init__(self) -> None:
        super().__init__()
        self.sides = {"plugin": Side(Trunk(1, 2), 2), "runtime": Side(Trunk(2, 1), 1)}
        self.unanswered: list[tuple[str, Call]] = []

    def other(self, name: str) -> Side:
        return self.sides["runtime" if name == "plugin" else "plugin"]

    def flush(self, name: str) -> None:
        self.other(name).pipe += self.sides[name].trunk.data_to_send()

    @rule(target=made, name=st.sampled_from(SIDES), size=SIZES)
    def call(self, name: str, size: int) -> tuple[str, int]:
        stream = self.sides[name].trunk.call("s", "m", bytes(size), 2.0)
        self.other(name).due_calls.append((stream, bytes(size)))
        return name, stream

    @rule(name=st.sampled_from(SIDES))
    def call_too_much(self, name: str) -> None:
        try:
            self.sides[name].trunk.call("s", "m", bytes(MAX_DATA), 2.0)
        except LocalError:
            return
        raise AssertionError("an oversize call was taken")

    @rule(who=made)
    def forget(self, who: tuple[str, int]) -> None:
        name, stream = who
        side = self.sides[name]
        side.trunk.forget(stream)
        side.due_answers.pop(stream, None)
        side.forgotten.add(stream)

    @rule(name=st.sampled_from(SIDES))
    def write(self, name: str) -> None:
        self.flush(name)

    @precondition(lambda self: any(side.pipe for side in self.sides.values()))
    @rule(name=st.sampled_from(SIDES), size=st.one_of(st.integers(1, 30), st.sampled_from([4096, 1 << 18, 1 << 23])))
    def read(self, name: str, size: int) -> None:
        side = self.sides[name]
        self.unanswered += [(name, call) for call in side.see(bytes(side.pipe[:size]))]
        del side.pipe[:size]

    def take(self, at: int) -> tuple[str, Call]:
        return self.unanswered.pop(at % len(self.unanswered))

    def owe(self, name: str, call: Call, payload: bytes, code: int) -> None:
        caller = self.other(name)
        if call.stream not in caller.forgotten:
            caller.due_answers[call.stream] = (payload, code)

    @precondition(lambda self: self.unanswered)
    @rule(at=st.integers(0, 1000), size=SIZES)
    def answer(self, at: int, size: int) -> None:
        name, call = self.take(at)
        self.sides[name].trunk.answer(call.stream, bytes(size))
        self.owe(name, call, bytes(size), 0)

    @precondition(lambda self: self.unanswered)
    @rule(at=st.integers(0, 1000))
    def answer_too_much(self, at: int) -> None:
        name, call = self.take(at)
        self.sides[name].trunk.answer(call.stream, bytes(MAX_DATA))
        self.owe(name, call, b"", 8)

    @precondition(lambda self: self.unanswered)
    @rule(at=st.integers(0, 1000), code=st.integers(1, 99), text=st.text(max_size=20))
    def refuse(self, at: int, code: int, text: str) -> None:
        name, call = self.take(at)
        self.sides[name].trunk.refuse(call.stream, code, text)
        self.owe(name, call, b"", code)

    @rule(name=st.sampled_from(SIDES), what=st.sampled_from(sorted(ILLEGAL)), cut=st.integers(0, 5000))
    def misbehave(self, name: str, what: str, cut: int) -> None:
        """Send what is illegal, in two frames, between two messages: it harms none of them."""
        data, connection = ILLEGAL[what], self.sides[name].calls_on
        self.flush(name)
        self.other(name).pipe += mux(77, data[:100]) + mux(connection, data[:cut]) + mux(connection, data[cut:])

    @invariant()
    def no_more_is_held_than_is_on_the_way(self) -> None:
        for side in self.sides.values():
            assert side.trunk.buffered <= 7 + 2 * (10 + MAX_DATA)

    def teardown(self) -> None:
        """When all has been written, read and answered, all that was due has come."""
        for _ in range(2):
            for name, side in self.sides.items():
                self.flush("runtime" if name == "plugin" else "plugin")
                self.unanswered += [(name, call) for call in side.see(bytes(side.pipe))]
                side.pipe.clear()
            while self.unanswered:
                self.answer(0, 1)
        for name, side in self.sides.items():
            self.flush("runtime" if name == "plugin" else "plugin")
            assert side.see(bytes(side.pipe)) == []
            assert side.due_calls == []
            assert side.due_answers == {}
            assert side.trunk.buffered == 0


TwoSides.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTwoSides = TwoSides.TestCase
