"""One request, one answer: a method of a gRPC service, which takes and gives protobuf messages.

By hand: generated code would tie us to one version of its generator, and gRPC's own reading of a request answers what
is no message with a traceback on stderr instead of words for the kubelet's log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from loguru import logger

Request = TypeVar("Request", bound=Message)


def method(
    request_type: type[Request], answer: Callable[[Request, grpc.ServicerContext], Message]
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """The handler of a method that `answer` answers; what is no message ends with INVALID_ARGUMENT."""

    def call(data: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            request = request_type.FromString(data)
        except DecodeError:
            problem = f"{len(data)} bytes that are no {request_type.DESCRIPTOR.name}"
            logger.warning("a call on the kubelet's socket has {}", problem)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request has {problem}")
        return answer(request, context).SerializeToString()

    return grpc.unary_unary_rpc_method_handler(call)
