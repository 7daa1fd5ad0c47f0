"""The kubelet's DRA service, versions v1 and v1beta1: its messages to calls of the preparer and back (KEP-4381).

Threads, not asyncio: everything a call does blocks (API read, flock, fsync), and the preparer serialises what must be.
A call never fails whole: each claim of the request has exactly one entry in the answer, with devices or an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import grpc

from dra.claims import ClaimRef, base_request
from dra.kubelet import dra_pb2 as pb
from dra.kubelet.calls import method
from dra.prepare.preparer import PreparedDevice, Preparer

# By the names that the kubelet is told (dra-protocol 1.3): for kubelets from 1.34, and for older ones.
SERVICES = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
# How long the kubelet waits for an answer, and what of it is kept for the way back.
KUBELET_TIMEOUT = 45.0
_MARGIN = 1.0
# Bytes that all errors of an answer have together. gRPC clients take 4 MiB if they are not told otherwise, and what is
# prepared is named in far less than the other half.
_ERRORS = 2 << 20
# One error keeps so much in any case.
_LEAST_ERROR = 16


class DRAService:
    """The two methods of the service."""

    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer

    def prepare(
        self, request: pb.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodePrepareResourcesResponse:
        outcomes = self._preparer.prepare(_refs(request.claims), _deadline(context), context.is_active)
        response = pb.NodePrepareResourcesResponse()
        for uid, outcome in outcomes.items():
            answer = response.claims[uid]  # makes the entry, also an empty one
            if isinstance(outcome, str):
                answer.error = _cut(outcome, len(outcomes))
            else:
                answer.devices.extend(map(_device, outcome))
        return response

    def prepare_v1beta1(
        self, request: pb.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodePrepareResourcesResponse:
        """The older version, whose devices have no share ID."""
        response = self.prepare(request, context)
        for answer in response.claims.values():
            for device in answer.devices:
                device.ClearField("share_id")
        return response

    def unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodeUnprepareResourcesResponse:
        outcomes = self._preparer.unprepare(_refs(request.claims), _deadline(context), context.is_active)
        response = pb.NodeUnprepareResourcesResponse()
        for uid, error in outcomes.items():
            response.claims[uid].error = _cut(error, len(outcomes))
        return response

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Both versions as gRPC wants them."""
        unprepare = method(pb.NodeUnprepareResourcesRequest, self.unprepare)
        return [
            grpc.method_handlers_generic_handler(
                service,
                {
                    "NodePrepareResources": method(pb.NodePrepareResourcesRequest, prepare),
                    "NodeUnprepareResources": unprepare,
                },
            )
            for service, prepare in zip(SERVICES.values(), (self.prepare, self.prepare_v1beta1), strict=True)
        ]


def _refs(claims: Iterable[pb.Claim]) -> list[ClaimRef]:
    return [ClaimRef(claim.uid, claim.namespace, claim.name) for claim in claims]


def _deadline(context: grpc.ServicerContext) -> float:
    # A caller without a time limit has one of centuries.
    return time.monotonic() + min(context.time_remaining(), KUBELET_TIMEOUT) - _MARGIN


def _cut(error: str, claims: int) -> str:
    """The part of an error for which there is room beside those of all the other claims: too long an answer would fail
    the call whole."""
    room = max(_ERRORS // claims, _LEAST_ERROR)
    return error.encode()[:room].decode(errors="ignore")


def _device(device: PreparedDevice) -> pb.Device:
    return pb.Device(
        request_names=[base_request(device.request)],
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id,  # None leaves it unset
    )
