"""The client's side: mods that clip its update or report its errors, and the answer to who it is."""

import traceback
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ..checks import check_lam
from ..functional import clip_rows_
from .arrays import ReplyError, SentModel, check_sends
from .replies import IDENTIFY, IDENTITY

Next = Callable[[Message, Context], Message]
_RAISED = 2  # Flower's code for a ClientApp that raised


def clip_update_mod(
    *, sends: str, lam: float | None = None, parameters: Any = None
) -> Callable[[Message, Context, Next], Message]:
    """A mod for FAT-Clipping per round on the client: its update is clipped to lam before it is sent.

    sends: what the client replies with: "weights", or "updates", x_t - x.
    lam: clipping threshold; None takes config["lam"], which FatClipStrategy and FatClipWrapper send.
    parameters: as in FatClipStrategy.

    Use it as `ClientApp(mods=[clip_update_mod(sends="weights")])`.
    """
    check_sends(sends)
    if lam is not None:
        check_lam(lam)

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        if not message.metadata.message_type.startswith("train"):
            return call_next(message, context)
        model = SentModel(next(iter(message.content.array_records.values())), parameters, sends)
        wanted = _find_lam(message) if lam is None else lam
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        records = reply.content.array_records
        if len(records) != 1:
            raise ReplyError(f"{len(records)} ArrayRecords instead of one")
        found = model.read_arrays(next(iter(records.values())))
        clip_rows_(model.row(model.update_of(found.parameters)), wanted)
        update = model.scratch()
        if sends == "weights":
            update = [x - piece for x, piece in zip(model.parameters, update, strict=True)]
        records[next(iter(records))] = model.record(update, found.buffers)
        return reply

    return mod


def _find_lam(message: Message) -> float:
    for config in message.content.config_records.values():
        if "lam" in config:
            return check_lam(config["lam"])
    raise ValueError("the server sent no lam: use FatClipStrategy or FatClipWrapper there, or pass lam here")


def traceback_mod(message: Message, context: Context, call_next: Next) -> Message:
    """A mod that sends the traceback of a client that raises, where Flower would send only the exception."""
    try:
        return call_next(message, context)
    except Exception:
        return Message(Error(code=_RAISED, reason=traceback.format_exc()), reply_to=message)


def answer_identity(app: ClientApp) -> None:
    """Lets the server sample clients by a seed: they answer with the partition-id of their node."""

    @app.query(IDENTIFY.partition(".")[2])  # type: ignore[untyped-decorator]
    def answer(message: Message, context: Context) -> Message:
        metrics = MetricRecord({IDENTITY: int(context.node_config[IDENTITY])})
        return Message(content=RecordDict({"identity": metrics}), reply_to=message)
