"""A node in a box: an emulated machine with a real Linux, containerd, CRI and NRI, for the demo and the tests.

    from hack.node.launch import start
    from hack.node.machine import Machine

    with start(Machine()) as node:
        node.install_project()
        print(node.run("lscpu -e").text)

A copy of a frozen machine is ready in about a second; the first of its kind has to be built (image) and booted
(snapshot) before, and is then kept outside the work tree. Nothing survives the process that started it.

launch starts boxes (image, snapshot in cache; qemu, qmp, keeper run them), access is what can be done in one (channel,
relay, cri), machine says what is emulated, guest holds what runs inside, __main__ is the command line.
"""
