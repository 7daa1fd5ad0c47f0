"""ttrpc: remote calls over a byte stream, as NRI uses them. Bytes in, events out: no sockets, no clocks, no threads."""
