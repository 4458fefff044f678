"""Encodes and decodes messages as Service Bus does, where that differs from Qpid Proton."""

import struct

from proton import Message, int32, symbol, timestamp

STATES = {"active": 0, "locked": 0, "deferred": 1, "scheduled": 2}
DATA = 0x75


def decode(raw):
    """Decodes one message."""
    message = Message()
    message.decode(raw)
    return message


def sections(raw):
    """Yields the code of each section of an encoded message, and the content of data sections."""
    place = 0
    while place < len(raw):
        code, form = raw[place + 2], raw[place + 3]
        place += 4
        if form in (0x40, 0x45):
            size, prefix = 0, 0
        elif form in (0xA0, 0xA1, 0xC0, 0xC1, 0xE0):
            size, prefix = raw[place], 1
        elif form in (0xB0, 0xB1, 0xD0, 0xD1, 0xF0):
            size, prefix = struct.unpack(">I", raw[place : place + 4])[0], 4
        else:
            return
        yield code, raw[place + prefix : place + prefix + size] if code == DATA else None
        place += prefix + size


def unbatch(raw):
    """Returns the messages of a batch, of which every data section is a message, or the message itself."""
    parts = [content for code, content in sections(raw) if code == DATA]
    is_message = lambda part: part[:2] == b"\x00\x53" and 0x70 <= part[2] <= 0x78
    return parts if parts and all(map(is_message, parts)) else [raw]


def scheduled_for(message):
    """Returns the instant at which a message is to be delivered, in milliseconds."""
    at = (message.annotations or {}).get(symbol("x-opt-scheduled-enqueue-time"))
    return int(at) if at else None


def encode(item):
    """Encodes a message for its receiver, with what the service adds."""
    message, annotations = item.message, dict(item.message.annotations or {})
    annotations[symbol("x-opt-sequence-number")] = item.seq
    annotations[symbol("x-opt-enqueue-sequence-number")] = item.seq
    annotations[symbol("x-opt-enqueued-time")] = timestamp(item.enqueued)
    annotations[symbol("x-opt-message-state")] = int32(STATES[item.state])
    if item.locked_until:
        annotations[symbol("x-opt-locked-until")] = timestamp(item.locked_until)
    message.annotations = annotations
    message.instructions = {symbol("x-opt-lock-token"): item.lock} if item.lock else None
    # Proton leaves out a header of defaults; Service Bus always sends the number of deliveries.
    ttl = message.ttl
    message.ttl, message.durable, message.priority, message.delivery_count = 0, False, 4, 0
    message.first_acquirer = False
    body = message.encode().removeprefix(b"\x00\x53\x70\x45")
    message.ttl = ttl
    lifetime = b"\x70" + struct.pack(">I", int(ttl * 1000)) if ttl else b"\x40"
    fields = b"\x41\x50\x04" + lifetime + b"\x42\x70" + struct.pack(">I", item.count)
    return b"\x00\x53\x70\xc0" + bytes([len(fields) + 1, 5]) + fields + body
