"""Queues of the double: messages, locks, schedules and dead letters, without any network.

Every change of a message that a client relies on is written to a journal before the client is told, so
that a double that was killed starts again with what it had confirmed.
"""

import base64
import heapq
import json
import pathlib
import time
import uuid

DEAD_LETTERS = "/$deadletterqueue"


def now_ms():
    """Returns the time of day in milliseconds."""
    return int(time.time() * 1000)


class Item:
    """A message in a queue: its bytes and what the service knows about it."""

    __slots__ = ("seq", "message", "count", "lock", "locked_until", "enqueued", "state")

    def __init__(self, seq, message):
        self.seq, self.message, self.count = seq, message, 0
        self.lock = self.locked_until = None
        self.enqueued, self.state = now_ms(), "active"


class Queue:
    """A queue or its dead-letter subqueue."""

    def __init__(self, name, journal, lock_s=60.0, max_deliveries=10, size_max=262_144, duplicates_s=0, dead=None):
        self.name, self.journal, self.dead = name, journal, dead
        self.duplicates_s, self.seen = duplicates_s, {}  # message id -> instant at which it is forgotten
        self.lock_s, self.max_deliveries, self.size_max = lock_s, max_deliveries, size_max
        self.items = {}  # sequence number -> Item, in every state
        self.ready = []  # heap of sequence numbers
        self.locks = {}  # lock token -> Item
        self.scheduled = []  # heap of (instant, sequence number)
        self.next_seq = 1

    def add(self, message, at=None, seq=None):
        """Stores a message, to be delivered at an instant in milliseconds if that is in the future."""
        item = Item(self.next_seq if seq is None else seq, message)
        self.next_seq = max(self.next_seq, item.seq + 1)
        if self.is_duplicate(message) and seq is None:
            return item
        self.items[item.seq] = item
        if seq is None:
            body = base64.b64encode(message.encode()).decode()
            self.journal.write("add", self.name, item.seq, body, at)
        if at and at > now_ms():
            item.state = "scheduled"
            heapq.heappush(self.scheduled, (at, item.seq))
        else:
            heapq.heappush(self.ready, item.seq)
        return item

    def is_duplicate(self, message):
        """Returns true if the queue has seen the id of a message: it is accepted, and not stored."""
        if not self.duplicates_s:
            return False
        now = now_ms()
        self.seen = {known: until for known, until in self.seen.items() if until > now}
        known = message.id in self.seen
        self.seen.setdefault(message.id, now + self.duplicates_s * 1000)
        return known

    def remove(self, item):
        """Deletes a message in any state."""
        self.unlock(item)
        if self.items.pop(item.seq, None):
            self.journal.write("remove", self.name, item.seq)

    def take(self):
        """Returns the next message that can be delivered, or None. Expired messages are dropped."""
        while self.ready:
            item = self.items.get(heapq.heappop(self.ready))
            if item is None or item.state != "active":
                continue
            ttl = item.message.ttl
            if ttl and now_ms() > item.enqueued + ttl * 1000:
                self.remove(item)
                continue
            return item
        return None

    def lock(self, item):
        """Locks a message for one receiver."""
        item.state, item.lock = "locked", uuid.uuid4()
        self.locks[item.lock] = item
        self.renew(item)

    def renew(self, item):
        """Restarts the lock duration of a message. Returns the end of its lock."""
        item.locked_until = now_ms() + int(self.lock_s * 1000)
        return item.locked_until

    def unlock(self, item):
        self.locks.pop(item.lock, None)
        item.lock = item.locked_until = None

    def release(self, item):
        """Abandons a message or ends its lock: it was delivered once more, and too often is too often."""
        self.unlock(item)
        item.count += 1
        if item.count >= self.max_deliveries and self.dead is not None:
            text = f"Message could not be consumed after {item.count} delivery attempts."
            self.bury(item, "MaxDeliveryCountExceeded", text)
        else:
            item.state = "active"
            heapq.heappush(self.ready, item.seq)

    def defer(self, item):
        """Sets a message aside: only its sequence number gets it back."""
        self.unlock(item)
        item.state = "deferred"

    def bury(self, item, reason, description=None, properties=None):
        """Moves a message to the dead-letter subqueue."""
        given = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        given = {name: text for name, text in given.items() if text}
        item.message.properties = {**(item.message.properties or {}), **(properties or {}), **given}
        if self.dead is not None:
            moved = self.dead.add(item.message)
            moved.enqueued, moved.count = item.enqueued, item.count
        self.remove(item)

    def tick(self):
        """Delivers what is due, and ends the locks whose time is over. Returns true if anything changed."""
        now, changed = now_ms(), False
        while self.scheduled and self.scheduled[0][0] <= now:
            item = self.items.get(heapq.heappop(self.scheduled)[1])
            if item and item.state == "scheduled":
                item.state, item.enqueued, changed = "active", now, True
                heapq.heappush(self.ready, item.seq)
        for item in [item for item in self.locks.values() if item.locked_until <= now]:
            self.release(item)
            changed = True
        return changed

    def counts(self):
        """Returns the number of active and of scheduled messages. Locked messages count as active."""
        scheduled = sum(item.state == "scheduled" for item in self.items.values())
        return len(self.items) - scheduled, scheduled


class Journal:
    """A file with all changes, one per line. Without a path nothing is kept."""

    def __init__(self, path, decode):
        self.path, self.decode, self.file = path and pathlib.Path(path), decode, None

    def write(self, *change):
        if self.file:
            self.file.write(json.dumps(change) + "\n")
            self.file.flush()

    def replay(self, namespace):
        """Applies the changes of earlier runs to a namespace, and keeps its own changes from now on."""
        if self.path is None:
            return
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                # The last line may be cut off: nobody was told about that change.
                try:
                    change, *rest = json.loads(line)
                except ValueError:
                    continue
                if change == "create":
                    namespace.create(rest[0], **rest[1])
                elif change == "delete":
                    namespace.delete(rest[0])
                elif change == "add":
                    queue, seq, body, at = rest
                    namespace.queues[queue.lower()].add(self.decode(base64.b64decode(body)), at, seq)
                elif (queue := namespace.queues.get(rest[0].lower())) and rest[1] in queue.items:
                    queue.remove(queue.items[rest[1]])
        self.file = self.path.open("a")


class Namespace:
    """All queues, by their names in lower case: Service Bus does not tell upper from lower case."""

    def __init__(self, journal, size_max=262_144):
        self.queues, self.journal, self.size_max = {}, journal, size_max
        journal.replay(self)

    def create(self, name, **options):
        """Creates a queue with its dead-letter subqueue. Returns false if it exists."""
        if name.lower() in self.queues:
            return False
        self.journal.write("create", name, options)
        lock_s = options.get("lock_s", 60.0)
        dead = Queue(name + DEAD_LETTERS, self.journal, lock_s=lock_s, max_deliveries=1 << 30)
        options.setdefault("size_max", self.size_max)
        self.queues[name.lower()] = Queue(name, self.journal, dead=dead, **options)
        self.queues[name.lower() + DEAD_LETTERS] = dead
        return True

    def delete(self, name):
        """Deletes a queue. Returns false if it does not exist."""
        if self.queues.pop(name.lower(), None) is None:
            return False
        del self.queues[name.lower() + DEAD_LETTERS]
        self.journal.write("delete", name)
        return True
