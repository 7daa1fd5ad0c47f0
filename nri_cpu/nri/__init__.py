"""The life of an NRI plugin: connect, register, be configured, synchronize, answer events, connect again."""
