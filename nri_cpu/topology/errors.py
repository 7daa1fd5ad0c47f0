"""What goes wrong when a machine is read."""


class TopologyError(Exception):
    """No CPU can be found, or the overlay can't be used; the message names the file or the key, and the way out."""
