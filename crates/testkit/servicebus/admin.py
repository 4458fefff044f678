"""The management API of the double (Atom XML over HTTP), and the token endpoint of Entra."""

import http.server
import json
import re
import threading
import urllib.parse
import xml.etree.ElementTree as ElementTree

from tokens import Refused

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
EMPTY_FEED = f'<feed xmlns="{ATOM}"><title type="text">Publicly Listed Services</title></feed>'


def seconds(duration):
    """Reads a duration such as PT1M30S."""
    units = {"D": 86_400, "H": 3_600, "M": 60, "S": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([DHMS])", duration))


def described(body):
    """Returns the options in a description of a queue."""
    found = ElementTree.fromstring(body).find(f".//{{{SERVICE_BUS}}}QueueDescription")
    if found is None:
        raise ValueError("the body has no QueueDescription")
    text = lambda name: found.findtext(f"{{{SERVICE_BUS}}}{name}")
    options = {}
    if duration := text("LockDuration"):
        options["lock_s"] = seconds(duration)
    if count := text("MaxDeliveryCount"):
        options["max_deliveries"] = int(count)
    if text("RequiresDuplicateDetection") == "true":
        options["duplicates_s"] = seconds(text("DuplicateDetectionHistoryTimeWindow") or "PT10M")
    if size := text("MaxMessageSizeInKilobytes"):
        options["size_max"] = int(size) * 1024
    return options


def entry(queue):
    """Describes a queue, with all fields that the SDKs read."""
    (active, scheduled), (dead, _) = queue.counts(), queue.dead.counts()
    counts = {"Active": active, "DeadLetter": dead, "Scheduled": scheduled, "Transfer": 0, "TransferDeadLetter": 0}
    counts = "".join(f"<d:{name}MessageCount>{count}</d:{name}MessageCount>" for name, count in counts.items())
    fields = {
        "LockDuration": f"PT{queue.lock_s:g}S",
        "MaxSizeInMegabytes": 1024,
        "RequiresDuplicateDetection": "true" if queue.duplicates_s else "false",
        "RequiresSession": "false",
        "DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S",
        "DeadLetteringOnMessageExpiration": "false",
        "DuplicateDetectionHistoryTimeWindow": f"PT{queue.duplicates_s or 600:g}S",
        "MaxDeliveryCount": queue.max_deliveries,
        "EnableBatchedOperations": "true",
        "MessageCount": active + scheduled,
        "CreatedAt": "2027-01-15T08:00:00Z",
        "UpdatedAt": "2027-01-15T08:00:00Z",
        "AccessedAt": "2027-01-15T08:00:00Z",
        "CountDetails": counts,
        "EnablePartitioning": "false",
        "EnableExpress": "false",
        "MaxMessageSizeInKilobytes": queue.size_max // 1024,
    }
    opening = {"CountDetails": f'CountDetails xmlns:d="{COUNTS}"'}
    fields = "".join(f"<{opening.get(name, name)}>{value}</{name}>" for name, value in fields.items())
    return (
        f'<entry xmlns="{ATOM}"><id>https://double/{queue.name}?api-version=2021-05</id>'
        f'<title type="text">{queue.name}</title><content type="application/xml">'
        f'<QueueDescription xmlns="{SERVICE_BUS}">{fields}</QueueDescription></content></entry>'
    )


class Admin:
    """Serves both on a thread; `run` executes a function on the thread that owns the namespace."""

    def __init__(self, address, namespace, keys, run):
        self.namespace, self.keys, self.run = namespace, keys, run

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(handler):
                size = int(handler.headers.get("Content-Length") or 0)
                body = handler.rfile.read(size)
                status, kind, text = self.respond(handler.command, handler.path, handler.headers, body)
                data = text.encode()
                handler.send_response(status)
                handler.send_header("Content-Type", kind)
                handler.send_header("Content-Length", str(len(data)))
                handler.end_headers()
                handler.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = answer

            def log_message(handler, *_):
                pass

        host, _, port = address.partition(":")
        server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def respond(self, method, path, headers, body):
        """Returns status, content type and text of the answer to a request."""
        path = urllib.parse.urlsplit(path).path
        if method == "POST" and path.endswith("/oauth2/v2.0/token"):
            status, answer = self.keys.issue(dict(urllib.parse.parse_qsl(body.decode())))
            return status, "application/json", json.dumps(answer)
        status, text = self.run(lambda: self.entity(method, urllib.parse.unquote(path[1:]), headers, body))
        if status >= 400:
            text = f"<Error><Code>{status}</Code><Detail>{text}</Detail></Error>"
        return status, "application/xml;charset=utf-8", text

    def entity(self, method, name, headers, body):
        """Creates, describes or deletes a queue."""
        try:
            _, rights, _ = self.keys.rights((headers.get("Authorization") or "").removeprefix("Bearer "))
        except Refused as refused:
            return 401, str(refused)
        if "Manage" not in rights:
            return 401, f"Manage,EntityRead claims required for this operation. Resource: {name}"
        found = self.namespace.queues.get(name.lower())
        if method == "GET":
            # An unknown entity is an empty feed and no error.
            return 200, entry(found) if found else EMPTY_FEED
        if method == "DELETE":
            return (200, "") if self.namespace.delete(name) else (404, f"SubCode=40400. {name} was not found")
        try:
            options = described(body)
        except (ElementTree.ParseError, ValueError) as error:
            return 400, f"SubCode=40000. {error}"
        if not self.namespace.create(name, **options):
            return 409, f"SubCode=40900. Conflict: {name} exists"
        return 201, entry(self.namespace.queues[name.lower()])
