"""A vendor API that records when each request arrives. GET /arrivals returns the times in milliseconds.

The time is the one at which the kernel received the first bytes of a request, so it does not depend on when this
process gets to run. Where the kernel does not tell it, the time of reading is used.
"""

import io
import json
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# From <asm/socket.h>: the message that carries the time has the same number as the option.
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@ll")

arrivals = []
lock = threading.Lock()


class StampedSocket(io.RawIOBase):
    """The receiving side of a socket, with the time at which the kernel received the first bytes of a request."""

    def __init__(self, connection):
        self.connection = connection
        self.received = None

    def readable(self):
        return True

    def readinto(self, buffer):
        length, ancillary, _, _ = self.connection.recvmsg_into([buffer], socket.CMSG_SPACE(TIMESPEC.size))
        if self.received is None:
            self.received = time.time() * 1000
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                    seconds, nanoseconds = TIMESPEC.unpack(data[: TIMESPEC.size])
                    self.received = seconds * 1000 + nanoseconds / 1e6
        return length


class Vendor(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.socket = StampedSocket(self.connection)
        self.rfile = io.BufferedReader(self.socket)

    def do_POST(self):
        with lock:
            arrivals.append(self.socket.received)
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.socket.received = None
        self.reply({"data": {"ok": True}})

    def do_GET(self):
        self.socket.received = None
        with lock:
            self.reply(arrivals)

    def do_DELETE(self):
        self.socket.received = None
        with lock:
            arrivals.clear()
        self.reply([])

    def reply(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 1024

    def server_bind(self):
        # Accepted connections inherit it.
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        super().server_bind()


Server(("127.0.0.1", int(sys.argv[1])), Vendor).serve_forever()
