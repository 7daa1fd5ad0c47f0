"""A cluster in a box: Kubernetes' own programs as processes on the loopback, with kubelets in nodes in boxes.

    from hack.kube.cluster import start

    with start(gates={"DRANodeAllocatableResources": True}) as cluster:
        cluster.api.create({"apiVersion": "v1", "kind": "Pod", ...})

cluster puts it together; control_plane runs etcd, API server, scheduler and controller manager, node a kubelet in a
box; certificates and kubeconfig say who is who, api is a client for tests, egress lets the API server reach kubelets.
programs has the Go sources, build builds and keeps them, image is the box's image with a kubelet, __main__ the command.
"""
