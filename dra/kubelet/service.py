"""The kubelet's DRA service, version v1: its messages to calls of the preparer and back (KEP-4381, proto/dra).

Threads, not asyncio: everything a call does blocks (API read, flock, fsync), and the preparer serialises what must be.
A call never fails whole: each claim of the request has exactly one entry in the answer, with devices or an error.
"""

from __future__ import annotations

import time
from typing import Any

import grpc

from dra.claims import ClaimRef
from dra.kubelet import dra_pb2 as pb
from dra.prepare.preparer import PreparedDevice, Preparer

SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
# How long the kubelet waits for an answer, and what of it is kept for the way back.
KUBELET_TIMEOUT = 45.0
_MARGIN = 1.0


class DRAService:
    """The two methods of the service."""

    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer

    def prepare(
        self, request: pb.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodePrepareResourcesResponse:
        outcomes = self._preparer.prepare([_ref(claim) for claim in request.claims], _deadline(context))
        response = pb.NodePrepareResourcesResponse()
        for uid, outcome in outcomes.items():
            answer = response.claims[uid]  # makes the entry, also an empty one
            if isinstance(outcome, str):
                answer.error = outcome
            else:
                answer.devices.extend(map(_device, outcome))
        return response

    def unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodeUnprepareResourcesResponse:
        outcomes = self._preparer.unprepare([_ref(claim) for claim in request.claims], _deadline(context))
        response = pb.NodeUnprepareResourcesResponse()
        for uid, error in outcomes.items():
            response.claims[uid].error = error
        return response

    def handler(self) -> grpc.GenericRpcHandler:
        """The service as gRPC wants it. By hand: generated code would tie us to one version of its generator."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                self.prepare,
                request_deserializer=pb.NodePrepareResourcesRequest.FromString,
                response_serializer=pb.NodePrepareResourcesResponse.SerializeToString,
            ),
            "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                self.unprepare,
                request_deserializer=pb.NodeUnprepareResourcesRequest.FromString,
                response_serializer=pb.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)


def _ref(claim: pb.Claim) -> ClaimRef:
    return ClaimRef(claim.uid, claim.namespace, claim.name)


def _deadline(context: grpc.ServicerContext) -> float:
    # A caller without a time limit has one of centuries.
    return time.monotonic() + min(context.time_remaining(), KUBELET_TIMEOUT) - _MARGIN


def _device(device: PreparedDevice) -> pb.Device:
    return pb.Device(
        # The kubelet knows a request with alternatives by the name before the slash.
        request_names=[device.request.partition("/")[0]],
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id,  # None leaves it unset
    )
