"""A caller that does something of its own whenever it is told something."""

from __future__ import annotations

from headrace.errors import Fault
from headrace.model import Arrived, Ending
from headrace.runtime.answer_head import AnswerHead
from headrace.runtime.reply import Reply
from tests.runtime.caller import Caller
from tests.runtime.engines import Bench


class Meddler(Caller):
    """Its deed is one of "cancel in MOMENT" or "open in MOMENT", the moment being begin, write or end."""

    def __init__(self, deed: str) -> None:
        super().__init__()
        self.deed = deed
        self.reply: Reply | None = None
        self.bench: Bench | None = None
        self.opened: list[Caller] = []

    def begin(self, head: AnswerHead) -> None:
        super().begin(head)
        self.act("begin")

    def write(self, data: bytes) -> bool:
        took = super().write(data)
        self.act("write")
        return took

    def end(self, ending: Ending, fault: Fault | None) -> None:
        super().end(ending, fault)
        self.act("end")

    def act(self, moment: str) -> None:
        if self.deed == f"cancel in {moment}" and self.reply is not None:
            self.reply.cancel()
        if self.deed == f"open in {moment}" and self.bench is not None and not self.opened:
            self.opened.append(Caller())
            shared = self.bench.seen[0][0]
            assert isinstance(shared, Arrived)
            self.bench.ask("second", self.opened[0], fingerprint=shared.request.fingerprint)
