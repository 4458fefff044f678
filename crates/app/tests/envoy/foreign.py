"""Calls Sluicegate over gRPC, knowing only its address."""

import argparse
import collections
import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

SERVICE = "sluicegate.v1.RateLimiterService"


def channel(args):
    if not args.ca:
        return grpc.insecure_channel(args.address)
    read = lambda path: open(path, "rb").read()
    credentials = grpc.ssl_channel_credentials(read(args.ca), read(args.key), read(args.cert))
    # The certificate is for a host name, but the service listens on an IP address.
    options = [("grpc.ssl_target_name_override", "localhost")]
    return grpc.secure_channel(args.address, credentials, options)


FIELDS = ["method", "timeout", "metadata", "credentials", "wait_for_ready", "compression"]


class Details(collections.namedtuple("Details", FIELDS), grpc.ClientCallDetails):
    """Call details, for which grpcio has no concrete type."""


class Token(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Adds the token to every call."""

    def __init__(self, token):
        self.metadata = [("authorization", "Bearer " + token)]

    def with_token(self, details):
        return Details(
            details.method, details.timeout, self.metadata, details.credentials, None, None
        )

    def intercept_unary_unary(self, proceed, details, request):
        return proceed(self.with_token(details), request)

    def intercept_stream_stream(self, proceed, details, requests):
        return proceed(self.with_token(details), requests)


def expect(is_so, what):
    if not is_so:
        sys.exit(f"not so: {what}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    for option in ["token", "ca", "cert", "key"]:
        parser.add_argument("--" + option)
    args = parser.parse_args()
    bare = channel(args)

    # Health needs no token.
    health = health_pb2_grpc.HealthStub(bare)
    for service in ["", SERVICE, "envoy.service.ratelimit.v3.RateLimitService"]:
        told = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        expect(told.status == health_pb2.HealthCheckResponse.SERVING, f"{service} serves")
    watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=10)
    expect(next(watch).status == health_pb2.HealthCheckResponse.SERVING, "a watch begins")
    watch.cancel()

    known = grpc.intercept_channel(bare, Token(args.token)) if args.token else bare
    database = ProtoReflectionDescriptorDatabase(known)
    expect(SERVICE in database.get_services(), "reflection lists the service")
    method = DescriptorPool(database).FindServiceByName(SERVICE).FindMethodByName("Allow")
    answer = GetMessageClass(method.output_type)

    def allow(through, **fields):
        call = through.unary_unary(
            f"/{SERVICE}/Allow",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return call(GetMessageClass(method.input_type)(**fields), timeout=10)

    if args.token:
        try:
            allow(bare, userId="u", modelId="m")
            sys.exit("let in without a token")
        except grpc.RpcError as error:
            expect(error.code() == grpc.StatusCode.UNAUTHENTICATED, "strangers are told so")
    for left in range(99, -1, -1):
        told = allow(known, userId="u", modelId="m")
        expect(told.allowed and told.remaining == left, f"{left} are left")
    told = allow(known, userId="u", modelId="m")
    expect(not told.allowed and told.scopeHit == "USER_MODEL", "the next is denied")
    try:
        allow(known, modelId="m")
        sys.exit("a user was not required")
    except grpc.RpcError as error:
        expect(error.code() == grpc.StatusCode.INVALID_ARGUMENT, "a mistake is named")
        expect(error.details().startswith("userId: is required: "), error.details())


main()
