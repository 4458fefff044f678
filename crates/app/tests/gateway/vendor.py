"""A vendor that records when each request arrives.

The time is the one at which the kernel received the first bytes of a request, so it does not depend on when this
process gets to run. With the paths of a certificate and its key as arguments it speaks TLS.

Prints its port. Then it answers each line of its input with a line:

    arrivals      the times in nanoseconds since 1970 with the replica that forwarded the request, as JSON
    down 1        from now on, connections are closed at the first byte of a request
    answer TEXT   the next request gets this response head, with \\n between its lines
"""

import json
import socket
import ssl
import struct
import sys
import threading

# From <asm/socket.h>: the message that carries the time has the same number as the option.
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@ll")
OK = "HTTP/1.1 200 OK"

arrivals = []
answers = []
is_down = False
lock = threading.Lock()


class Connection:
    """A connection, with the time at which the kernel received the bytes that were read last."""

    def __init__(self, plain, context):
        self.plain, self.at, self.tls = plain, 0, None
        if context is not None:
            self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
            self.run(self.tls.do_handshake)

    def receive(self):
        data, ancillary, _, _ = self.plain.recvmsg(1 << 16, socket.CMSG_SPACE(TIMESPEC.size))
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = TIMESPEC.unpack(value[: TIMESPEC.size])
                self.at = seconds * 1_000_000_000 + nanoseconds
        if not data:
            raise ConnectionError("closed")
        return data

    def run(self, operation):
        """Runs an operation of TLS with as many messages in both directions as it needs."""
        while True:
            try:
                result = operation()
                self.plain.sendall(self.outgoing.read())
                return result
            except ssl.SSLWantReadError:
                self.plain.sendall(self.outgoing.read())
                self.incoming.write(self.receive())

    def read(self):
        return self.receive() if self.tls is None else self.run(lambda: self.tls.read(1 << 16))

    def write(self, data):
        self.plain.sendall(data) if self.tls is None else self.run(lambda: self.tls.write(data))


def serve(plain, context):
    connection = Connection(plain, context)
    received = b""
    while True:
        at = connection.at
        while b"\r\n\r\n" not in received:
            is_first = not received
            received += connection.read()
            if is_first:
                at = connection.at
        if is_down:
            return
        head, received = received.split(b"\r\n\r\n", 1)
        fields = [line.split(":", 1) for line in head.decode("latin-1").split("\r\n")[1:]]
        fields = {name.strip().lower(): value.strip() for name, value in fields}
        with lock:
            arrivals.append([at, fields.get("x-through", "")])
            answer = answers.pop(0) if answers else OK
        length = int(fields.get("content-length", 0))
        while len(received) < length:
            received += connection.read()
        received = received[length:]
        answer = answer.replace("\n", "\r\n") + "\r\ncontent-length: 2\r\n\r\nok"
        connection.write(answer.encode())


def serve_and_close(plain, context):
    with plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            serve(plain, context)
        except (OSError, ValueError):
            pass


def accept(listener, context):
    while True:
        plain, _ = listener.accept()
        threading.Thread(target=serve_and_close, args=(plain, context), daemon=True).start()


tls = None
if len(sys.argv) > 2:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(sys.argv[1], sys.argv[2])
server = socket.create_server(("127.0.0.1", 0), backlog=1024)
# Accepted connections inherit it.
server.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
threading.Thread(target=accept, args=(server, tls), daemon=True).start()
print(server.getsockname()[1], flush=True)
for line in sys.stdin:
    command, _, argument = line.rstrip("\n").partition(" ")
    with lock:
        if command == "down":
            is_down = argument == "1"
        elif command == "answer":
            answers.append(argument.replace("\\n", "\n"))
        print(json.dumps(arrivals) if command == "arrivals" else "done", flush=True)
