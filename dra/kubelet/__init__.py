"""What the kubelet talks to: the DRA service (service) on its socket (server). dra_pb2 is generated from proto/dra."""
