"""Checks the double with Microsoft's SDK for Python (azure-servicebus).

usage: sdk_check.py AMQP_PORT ADMIN_PORT
"""

import datetime
import sys
import time

from azure.core.exceptions import ClientAuthenticationError, ResourceExistsError, ResourceNotFoundError
from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

AMQP, ADMIN = sys.argv[1:]
KEY = ("RootManageSharedAccessKey", "c2VjcmV0")
LISTENER = ("listener", "bGlzdGVu")
QUEUE = "python-sdk"
LOCK = datetime.timedelta(seconds=3)


class PlainTransport(RequestsTransport):
    """HTTP instead of HTTPS, which the SDK insists on."""

    def send(self, request, **options):
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


def connection_string(port, key):
    return (
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={key[0]};SharedAccessKey={key[1]};"
        "UseDevelopmentEmulator=true;"
    )


def client(key=KEY):
    return ServiceBusClient.from_connection_string(connection_string(AMQP, key), retry_total=0)


def fails(error, work):
    """Requires that work raises an error of this type."""
    try:
        work()
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected")


def one(receiver):
    """Receives one message."""
    received = receiver.receive_messages(1, max_wait_time=60)
    assert len(received) == 1, received
    return received[0]


def body(message):
    return b"".join(message.body)


def later(seconds):
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)


def management(admin):
    admin.create_queue(QUEUE, lock_duration=LOCK, max_delivery_count=3)
    fails(ResourceExistsError, lambda: admin.create_queue(QUEUE))
    fails(ResourceNotFoundError, lambda: admin.get_queue("missing"))
    found = admin.get_queue(QUEUE)
    assert (found.max_delivery_count, found.lock_duration) == (3, LOCK), found
    admin.create_queue("short-lived")
    admin.delete_queue("short-lived")
    fails(ResourceNotFoundError, lambda: admin.get_queue_runtime_properties("short-lived"))
    wrong = ServiceBusAdministrationClient.from_connection_string(
        connection_string(ADMIN, (KEY[0], "d3Jvbmc=")), transport=PlainTransport()
    )
    fails(ClientAuthenticationError, lambda: wrong.get_queue(QUEUE))


def settling(sender, receiver, dead):
    sender.send_messages(ServiceBusMessage(b"one", message_id="m1", application_properties={"n": 7}))
    message = one(receiver)
    assert (body(message), message.message_id, message.delivery_count) == (b"one", "m1", 0), message
    assert message.application_properties[b"n"] == 7 and message.sequence_number and message.enqueued_time_utc
    until = message.locked_until_utc
    assert receiver.renew_message_lock(message) >= until
    receiver.abandon_message(message)
    message = one(receiver)
    assert message.delivery_count == 1, message
    receiver.complete_message(message)

    sender.send_messages(ServiceBusMessage(b"dead"))
    receiver.dead_letter_message(one(receiver), reason="bad", error_description="because")
    peeked = dead.peek_messages(10)
    assert [message.dead_letter_reason for message in peeked] == ["bad"], peeked
    message = one(dead)
    assert message.dead_letter_error_description == "because", message
    dead.complete_message(message)

    sender.send_messages(ServiceBusMessage(b"deferred"))
    message = one(receiver)
    receiver.defer_message(message)
    receiver.complete_message(receiver.receive_deferred_messages([message.sequence_number])[0])


def locks(sender, receiver, dead):
    sender.send_messages(ServiceBusMessage(b"slow"))
    first, second = one(receiver), one(receiver)
    assert (first.sequence_number, second.delivery_count) == (second.sequence_number, 1)
    fails(MessageLockLostError, lambda: receiver.renew_message_lock(first))
    fails(MessageLockLostError, lambda: receiver.complete_message(first))
    receiver.complete_message(second)

    sender.send_messages(ServiceBusMessage(b"poison"))
    for _ in range(3):
        receiver.abandon_message(one(receiver))
    message = one(dead)
    assert message.dead_letter_reason == "MaxDeliveryCountExceeded", message
    dead.complete_message(message)


def scheduling(sender, receiver, admin):
    begin = time.time()
    sender.schedule_messages(ServiceBusMessage(b"later"), later(1.5))
    message = one(receiver)
    assert time.time() - begin > 1.4
    receiver.complete_message(message)
    numbers = sender.schedule_messages([ServiceBusMessage(b"x"), ServiceBusMessage(b"y")], later(3600))
    assert admin.get_queue_runtime_properties(QUEUE).scheduled_message_count == 2
    sender.cancel_scheduled_messages(numbers)
    counts = admin.get_queue_runtime_properties(QUEUE)
    assert (counts.scheduled_message_count, counts.active_message_count) == (0, 0), counts


def batches(bus, sender):
    sent = [b"%d" % number for number in range(5)]
    sender.send_messages([ServiceBusMessage(part) for part in sent])
    with bus.get_queue_receiver(QUEUE, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        got = []
        while len(got) < len(sent):
            got += [body(message) for message in receiver.receive_messages(5, max_wait_time=60)]
        assert got == sent, got
        assert receiver.peek_messages(1) == []


def duplicates(bus, admin):
    window = datetime.timedelta(minutes=5)
    admin.create_queue("once", requires_duplicate_detection=True, duplicate_detection_history_time_window=window)
    found = admin.get_queue("once")
    assert (found.requires_duplicate_detection, found.duplicate_detection_history_time_window) == (True, window), found
    with bus.get_queue_sender("once") as sender, bus.get_queue_receiver("once") as receiver:
        for name in ["a", "b", "a"]:
            sender.send_messages(ServiceBusMessage(name, message_id=name))
        first, second = one(receiver), one(receiver)
        assert (first.message_id, second.message_id) == ("a", "b"), (first, second)
        receiver.complete_message(first)
        receiver.complete_message(second)
        sender.send_messages(ServiceBusMessage("a", message_id="a"))
        assert receiver.peek_messages(1) == []
    admin.delete_queue("once")


def refusals(bus):
    fails(MessagingEntityNotFoundError, lambda: bus.get_queue_sender("missing").__enter__())
    wrong = client((KEY[0], "d3Jvbmc="))
    fails(ServiceBusAuthenticationError, lambda: wrong.get_queue_sender(QUEUE).__enter__())
    with client(LISTENER) as listener:
        listener.get_queue_receiver(QUEUE).__enter__().close()
        fails(ServiceBusAuthorizationError, lambda: listener.get_queue_sender(QUEUE).__enter__())


def main():
    admin = ServiceBusAdministrationClient.from_connection_string(
        connection_string(ADMIN, KEY), transport=PlainTransport()
    )
    management(admin)
    with client() as bus, bus.get_queue_sender(QUEUE) as sender:
        with (
            bus.get_queue_receiver(QUEUE) as receiver,
            bus.get_queue_receiver(QUEUE, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead,
        ):
            settling(sender, receiver, dead)
            locks(sender, receiver, dead)
            scheduling(sender, receiver, admin)
        batches(bus, sender)
        duplicates(bus, admin)
        refusals(bus)
    print("passed")


main()
