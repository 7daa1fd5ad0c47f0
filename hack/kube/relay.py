"""relay.py PORT: joins standard input, a socket, to a loopback port; QEMU runs one for each connection of a box.

Standard library only, and little of it: it starts with every connection.
"""

import os
import select
import socket
import sys

_CHUNK = 1 << 16


def main() -> int:
    try:
        server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    except OSError:
        return 1  # the box sees its connection end
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client = socket.socket(fileno=0)
    others = {client: server, server: client}
    reading = [client, server]
    while reading:
        for source in select.select(reading, [], [])[0]:
            target = others[source]
            try:
                data = source.recv(_CHUNK)
                if data:
                    target.sendall(data)
                    continue
                target.shutdown(socket.SHUT_WR)
            except OSError:
                return 1
            reading.remove(source)
    return 0


if __name__ == "__main__":
    # Nothing is worth tidying up.
    os._exit(main())
