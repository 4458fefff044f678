"""A vendor API that records when each request arrives. GET /arrivals returns the times in milliseconds."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

arrivals = []
lock = threading.Lock()


class Vendor(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        with lock:
            arrivals.append(time.monotonic() * 1000)
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.reply({"data": {"ok": True}})

    def do_GET(self):
        with lock:
            self.reply(arrivals)

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


Server(("127.0.0.1", int(sys.argv[1])), Vendor).serve_forever()
