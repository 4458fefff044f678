"""A double of Azure Service Bus for tests: its AMQP 1.0 data plane on Apache Qpid Proton, its management API
and the token endpoint of Entra, on loopback.

Microsoft's SDKs for Python and JavaScript pass against it (sdk_check.py, sdk_check.mjs).

usage: double.py --listen 127.0.0.1:5672 --admin 127.0.0.1:5300 [--journal FILE]
"""

import argparse
import concurrent.futures
import itertools
import time

from proton import UNDESCRIBED, Array, Condition, Data, Delivery, Link, Message, Terminus, int32, symbol, timestamp
from proton.handlers import MessagingHandler
from proton.reactor import ApplicationEvent, Container, EventInjector

import wire
from admin import Admin
from entities import Journal, Namespace
from tokens import RIGHTS, Keys, Refused

CBS = "$cbs"
MANAGEMENT = "/$management"
LOCK_LOST = "com.microsoft:message-lock-lost"
# Interval in which due messages, locks and tokens are looked at, in seconds.
TICK_S = 0.01
# Credit that senders get; renewed when half of it is used.
CREDIT = 1_000


def path(address):
    """Returns an address without its scheme and host, in lower case."""
    if address and "://" in address:
        address = address.split("://", 1)[1].partition("/")[2]
    return (address or "").strip("/").lower()


def entity(name):
    """Returns the queue that a path belongs to."""
    return name.removesuffix(MANAGEMENT)


def elements(value):
    return list(value.elements) if isinstance(value, Array) else list(value or [])


class Missing(Exception):
    """A request that can't be executed: its status, text and error condition."""

    def __init__(self, status, text, condition=None):
        super().__init__(text)
        self.status, self.condition = status, condition


LOST = Missing(410, "The lock supplied is invalid.", LOCK_LOST)


class Bus(MessagingHandler):
    """The AMQP endpoint."""

    def __init__(self, address, namespace, keys, inject):
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self.address, self.namespace, self.keys, self.inject = address, namespace, keys, inject
        self.tags = itertools.count(1)
        self.grants = {}  # connection -> {path: (rights, expiry)}
        self.replies = {}  # (connection, node, address) -> link
        self.receivers = {}  # queue -> links on which it is received
        self.entities = {}  # link -> (path, right) that it needs
        self.deliveries = {}  # delivery -> (queue, item, lock)
        self.refused = []  # (link, condition)

    # Connections and links

    def on_start(self, event):
        event.container.selectable(self.inject)
        event.container.listen(self.address)
        event.container.schedule(TICK_S, self)
        print("READY", flush=True)

    def on_connection_opening(self, event):
        self.grants[event.connection] = {}

    def on_link_opening(self, event):
        link = event.link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode, link.rcv_settle_mode = link.remote_snd_settle_mode, link.remote_rcv_settle_mode
        if link.is_sender:
            node, right = path(link.remote_source.address), "Listen"
        else:
            node, right = path(link.remote_target.address), "Send"
        if node == CBS or node.endswith(MANAGEMENT):
            if link.is_sender:
                self.replies[link.connection, node, link.remote_target.address] = link
            else:
                link.flow(CREDIT)
            return
        queue = self.namespace.queues.get(node)
        if queue is None:
            text = f"The messaging entity 'sb://double/{node}' could not be found."
            self.refuse(link, "amqp:not-found", text)
        elif not self.may(link.connection, node, right):
            text = f"Unauthorized access. '{right}' claim(s) are required to perform this operation."
            self.refuse(link, "amqp:unauthorized-access", f"{text} Resource: 'sb://double/{node}'")
        elif link.is_sender:
            self.entities[link] = node, right
            self.receivers.setdefault(queue, []).append(link)
        elif queue.dead is None:
            self.refuse(link, "amqp:not-allowed", "Cannot send to a dead-letter queue.")
        else:
            self.entities[link] = node, right
            link.max_message_size = queue.size_max
            link.flow(CREDIT)

    def refuse(self, link, condition, text):
        link.source.type = link.target.type = Terminus.UNSPECIFIED
        self.refused.append((link, Condition(condition, text)))

    def on_link_local_open(self, event):
        # Proton opens a link that was closed while it opens: detach after the attach.
        for link, condition in [entry for entry in self.refused if entry[0] == event.link]:
            link.condition = condition
            link.close()
        self.refused = [entry for entry in self.refused if entry[0] != event.link]

    def on_link_closing(self, event):
        self.forget(lambda link: link == event.link)
        event.link.close()

    def on_link_error(self, event):
        # Some clients repeat the error of a refused link. Proton would close the connection.
        self.on_link_closing(event)

    def on_connection_closing(self, event):
        self.on_disconnected(event)
        event.connection.close()

    def on_disconnected(self, event):
        self.grants.pop(event.connection, None)
        self.forget(lambda link: link.connection == event.connection)

    def forget(self, gone):
        """Forgets links. Locks of their messages stay."""
        for links in self.receivers.values():
            links[:] = [link for link in links if not gone(link)]
        for known in (self.entities, self.deliveries):
            for key in [key for key in known if gone(key if known is self.entities else key.link)]:
                del known[key]
        for key in [key for key, link in self.replies.items() if gone(link)]:
            del self.replies[key]

    def may(self, connection, node, right):
        """Returns true if a connection has a right on a path."""
        granted = self.grants.get(connection, {}).items()
        covers = lambda scope: scope == "" or node == scope or node.startswith(scope + "/")
        return any(
            covers(scope) and right in rights and expiry > time.time() for scope, (rights, expiry) in granted
        )

    # Messages

    def on_sendable(self, event):
        self.pump_all(queue for queue, links in self.receivers.items() if event.link in links)

    def on_delivery(self, event):
        delivery = event.delivery
        if not delivery.link.is_receiver:
            if delivery.updated:
                self.on_disposition(delivery)
            return
        if not delivery.readable or delivery.partial:
            return
        link, node = delivery.link, path(delivery.link.remote_target.address)
        raw = link.recv(delivery.pending)
        link.advance()
        try:
            for part in wire.unbatch(raw):
                self.on_incoming(event.connection, node, wire.decode(part))
            delivery.update(Delivery.ACCEPTED)
        except Exception as error:  # Whatever a client sends must not end the double.
            delivery.local.condition = Condition("amqp:internal-error", repr(error))
            delivery.update(Delivery.REJECTED)
        delivery.settle()
        if link.credit < CREDIT // 2:
            link.flow(CREDIT // 2)

    def on_incoming(self, connection, node, message):
        if node == CBS:
            return self.on_token(connection, message)
        if node.endswith(MANAGEMENT):
            return self.on_request(connection, node, message)
        queue = self.namespace.queues[node]
        if message.id is None:
            # The JavaScript SDK relies on an id of every message.
            message.id = f"double-{next(self.tags)}"
        queue.add(message, wire.scheduled_for(message))
        return self.pump(queue)

    def pump(self, queue):
        """Delivers ready messages to receivers with credit, one after the other."""
        links = self.receivers.get(queue, [])
        while queue.ready:
            link = next((link for link in links if link.credit > 0), None)
            item = link and queue.take()
            if not item:
                break
            links.remove(link)
            links.append(link)
            queue.lock(item)
            delivery = link.delivery(item.lock.bytes_le)
            link.stream(wire.encode(item))
            link.advance()
            if link.remote_snd_settle_mode == Link.SND_SETTLED:
                queue.remove(item)
                delivery.settle()
            else:
                self.deliveries[delivery] = queue, item, item.lock
        for link in links:
            if link.credit and link.drain_mode:
                link.drained()

    def pump_all(self, queues):
        for queue in list(queues):
            self.pump(queue)

    def on_disposition(self, delivery):
        queue, item, lock = self.deliveries.get(delivery, (None, None, None))
        if queue is None or delivery.remote_state == 0:
            return
        state = delivery.remote_state
        if item.lock != lock:
            delivery.local.condition = Condition(LOCK_LOST, "The lock supplied is invalid.")
            delivery.update(Delivery.REJECTED)
        else:
            self.settle(queue, item, delivery)
            delivery.update(state)
        del self.deliveries[delivery]
        delivery.settle()
        self.pump_all(filter(None, (queue, queue.dead)))

    @staticmethod
    def settle(queue, item, delivery):
        remote, state = delivery.remote, delivery.remote_state
        if state == Delivery.ACCEPTED:
            queue.remove(item)
        elif state == Delivery.REJECTED:
            info = (remote.condition.info if remote.condition else None) or {}
            given = {str(key): value for key, value in info.items()}
            reason, text = given.get("DeadLetterReason"), given.get("DeadLetterErrorDescription")
            queue.bury(item, reason, text)
        elif state == Delivery.MODIFIED and remote.undeliverable:
            queue.defer(item)
        else:
            changed = {str(key): value for key, value in (remote.annotations or {}).items()}
            item.message.properties = {**(item.message.properties or {}), **changed}
            queue.release(item)

    # Time

    def on_timer_task(self, event):
        self.pump_all([queue for queue in self.namespace.queues.values() if queue.tick()])
        for link, (node, right) in list(self.entities.items()):
            gone = node not in self.namespace.queues
            if gone or not self.may(link.connection, node, right):
                condition = "amqp:not-found" if gone else "amqp:unauthorized-access"
                link.condition = Condition(condition, f"{node}: gone, or its token is expired.")
                self.forget(lambda other, link=link: other == link)
                link.close()
        event.container.schedule(TICK_S, self)

    def on_admin(self, event):
        event.subject()

    # Requests

    def reply(self, connection, node, request, status, body=None, text="OK", condition=None):
        open_links = self.replies.items()
        links = {to: link for (peer, name, to), link in open_links if (peer, name) == (connection, node)}
        link = links.get(request.reply_to) or next(iter(links.values()), None)
        if link is None:
            return
        names = ("status-code", "status-description") if node == CBS else ("statusCode", "statusDescription")
        answer = Message(body=body, correlation_id=request.correlation_id or request.id)
        answer.properties = dict(zip(names, (int32(status), text)))
        if condition:
            answer.properties["errorCondition"] = symbol(condition)
        delivery = link.delivery(str(next(self.tags)))
        link.stream(answer.encode())
        link.advance()
        delivery.settle()

    def on_token(self, connection, request):
        fields = request.properties or {}
        try:
            if fields.get("operation") != "put-token":
                raise Refused("the operation is not put-token")
            _, rights, expiry = self.keys.rights(str(request.body))
        except Refused as refused:
            return self.reply(connection, CBS, request, 401, text=str(refused))
        self.grants[connection][entity(path(str(fields.get("name"))))] = rights, expiry
        return self.reply(connection, CBS, request, 202, text="Accepted")

    def on_request(self, connection, node, request):
        operation = str((request.properties or {}).get("operation")).removeprefix("com.microsoft:")
        handle = self.OPERATIONS.get(operation)
        try:
            if handle is None:
                raise Missing(501, f"not implemented: {operation}")
            handle, right = handle
            if not self.may(connection, entity(node), right):
                raise Missing(401, f"Unauthorized access. '{right}' claim(s) are required.")
            queue = self.namespace.queues.get(entity(node))
            if queue is None:
                raise Missing(404, f"The messaging entity '{entity(node)}' could not be found.", "amqp:not-found")
            status, body = handle(queue, request.body or {})
        except Missing as missing:
            text, condition = str(missing), missing.condition
            return self.reply(connection, node, request, missing.status, text=text, condition=condition)
        self.reply(connection, node, request, status, body)
        return self.pump_all(filter(None, (queue, queue.dead)))

    @staticmethod
    def locked(queue, body):
        """Returns the messages of the lock tokens of a request, which have to be valid all."""
        items = [queue.locks.get(token) for token in elements(body["lock-tokens"])]
        if None in items:
            raise LOST
        return items

    @staticmethod
    def renew_lock(queue, body):
        ends = [timestamp(queue.renew(item)) for item in Bus.locked(queue, body)]
        return 200, {"expirations": Array(UNDESCRIBED, Data.TIMESTAMP, *ends)}

    @staticmethod
    def update_disposition(queue, body):
        for item in Bus.locked(queue, body):
            match body["disposition-status"]:
                case "completed":
                    queue.remove(item)
                case "abandoned":
                    queue.release(item)
                case "defered":  # sic
                    queue.defer(item)
                case "suspended":
                    changed = {str(key): value for key, value in (body.get("properties-to-modify") or {}).items()}
                    queue.bury(item, body.get("deadletter-reason"), body.get("deadletter-description"), changed)
                case other:
                    raise Missing(400, f"unknown disposition {other}")
        return 200, {}

    @staticmethod
    def schedule_message(queue, body):
        messages = [wire.decode(bytes(entry["message"])) for entry in body["messages"]]
        numbers = [queue.add(message, wire.scheduled_for(message)).seq for message in messages]
        return 200, {"sequence-numbers": Array(UNDESCRIBED, Data.LONG, *numbers)}

    @staticmethod
    def cancel_scheduled_message(queue, body):
        items = [queue.items.get(number) for number in elements(body["sequence-numbers"])]
        if any(item is None or item.state != "scheduled" for item in items):
            raise Missing(404, "a message is not scheduled")
        for item in items:
            queue.remove(item)
        return 200, {}

    @staticmethod
    def peek_message(queue, body):
        items = (item for seq, item in sorted(queue.items.items()) if seq >= body["from-sequence-number"])
        found = list(itertools.islice(items, body["message-count"]))
        return (200, {"messages": [{"message": wire.encode(item)} for item in found]}) if found else (204, {})

    @staticmethod
    def receive_by_sequence_number(queue, body):
        items = [queue.items.get(number) for number in elements(body["sequence-numbers"])]
        if any(item is None or item.state != "deferred" for item in items):
            raise Missing(404, "a message is not deferred")
        for item in items:
            queue.lock(item)
        return 200, {"messages": [{"lock-token": item.lock, "message": wire.encode(item)} for item in items]}

    OPERATIONS = {
        "renew-lock": (renew_lock.__func__, "Listen"),
        "update-disposition": (update_disposition.__func__, "Listen"),
        "schedule-message": (schedule_message.__func__, "Send"),
        "cancel-scheduled-message": (cancel_scheduled_message.__func__, "Send"),
        "peek-message": (peek_message.__func__, "Listen"),
        "receive-by-sequence-number": (receive_by_sequence_number.__func__, "Listen"),
    }


def grant(text):
    """Reads NAME:SECRET[:RIGHT,RIGHT]."""
    name, secret, *rights = text.split(":")
    rights = rights[0].split(",") if rights else RIGHTS
    if not set(rights) <= RIGHTS:
        raise argparse.ArgumentTypeError(f"unknown right in {text} (known: {', '.join(sorted(RIGHTS))})")
    return name, secret, rights


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", default="127.0.0.1:5672", metavar="ADDRESS", help="address for AMQP")
    parser.add_argument("--admin", default="127.0.0.1:5300", metavar="ADDRESS", help="address for HTTP")
    parser.add_argument("--journal", metavar="FILE", help="file that keeps all messages")
    parser.add_argument("--key", action="append", type=grant, default=[], metavar="NAME:SECRET[:RIGHTS]")
    parser.add_argument("--client", action="append", type=grant, default=[], metavar="ID:SECRET[:RIGHTS]")
    parser.add_argument("--token-seconds", type=float, default=3600, help="lifetime of tokens for clients")
    parser.add_argument("--size-max", type=int, default=262_144, help="largest message of a new queue, in bytes")
    arguments = parser.parse_args()
    keys = arguments.key or [("RootManageSharedAccessKey", "c2VjcmV0", RIGHTS)]
    keys = Keys(keys, arguments.client, arguments.token_seconds)
    namespace = Namespace(Journal(arguments.journal, wire.decode), arguments.size_max)
    inject = EventInjector()

    def run(work):
        done = concurrent.futures.Future()

        def complete():
            try:
                done.set_result(work())
            except Exception as error:  # Raised where it was called for.
                done.set_exception(error)

        inject.trigger(ApplicationEvent("admin", subject=complete))
        return done.result()

    bus = Bus(f"amqp://{arguments.listen}", namespace, keys, inject)
    Admin(arguments.admin, namespace, keys, run)
    Container(bus).run()


if __name__ == "__main__":
    main()
