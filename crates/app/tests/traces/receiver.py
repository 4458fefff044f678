"""A collector of traces: receives OTLP over HTTP and gRPC and prints each span as a line of JSON.

The first line has the ports. The arguments `tls CERTIFICATE KEY` name files for TLS. With the argument `call ADDRESS METHOD TRACEPARENT MESSAGE` it is a
client instead: it sends a message, in hexadecimal, to a gRPC method.
"""

import http.server
import json
import ssl
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as stubs
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

LOCK = threading.Lock()


def show(line):
    with LOCK:
        print(json.dumps(line), flush=True)


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes(pairs):
    return {pair.key: value(pair.value) for pair in pairs}


def receive(request, protocol, key):
    for resource_spans in request.resource_spans:
        resource = attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                failed = span.status.code == Status.STATUS_CODE_ERROR
                show({
                    "protocol": protocol,
                    "key": key,
                    "service": resource["service.name"],
                    "scope": scope_spans.scope.name,
                    "name": span.name,
                    "kind": Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    "trace": span.trace_id.hex(),
                    "span": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "state": span.trace_state,
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "attributes": attributes(span.attributes),
                    "error": span.status.message if failed else None,
                })


class OverGrpc(stubs.TraceServiceServicer):
    def Export(self, request, context):
        key = dict(context.invocation_metadata()).get("x-api-key")
        receive(request, "grpc", key)
        return service.ExportTraceServiceResponse()


class OverHttp(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/v1/traces" or self.headers["content-type"] != "application/x-protobuf":
            self.send_error(404)
            return
        request = service.ExportTraceServiceRequest.FromString(body)
        receive(request, "http", self.headers["x-api-key"])
        answer = service.ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def serve(certificate=None, key=None):
    over_http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OverHttp)
    over_grpc = grpc.server(ThreadPoolExecutor(max_workers=4))
    stubs.add_TraceServiceServicer_to_server(OverGrpc(), over_grpc)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        over_http.socket = context.wrap_socket(over_http.socket, server_side=True)
        with open(key, "rb") as key_file, open(certificate, "rb") as certificate_file:
            pair = (key_file.read(), certificate_file.read())
        port = over_grpc.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    else:
        port = over_grpc.add_insecure_port("127.0.0.1:0")
    threading.Thread(target=over_http.serve_forever, daemon=True).start()
    over_grpc.start()
    show({"http": over_http.server_port, "grpc": port})
    # The parent closes standard input when it ends.
    sys.stdin.read()


def call(address, method, traceparent, message):
    with grpc.insecure_channel(address) as channel:
        unary = channel.unary_unary(method, lambda message: message, lambda message: message)
        unary(bytes.fromhex(message), timeout=30, metadata=[("traceparent", traceparent)])


if len(sys.argv) > 1 and sys.argv[1] == "call":
    call(*sys.argv[2:])
else:
    serve(*sys.argv[2:])
