"""What the kubelet talks to, at our sockets (sockets, server, kept): who we are (registration), the DRA service
(service), the health of devices (health_service). calls: messages in and out; the modules *_pb2 are generated from
proto/dra."""
