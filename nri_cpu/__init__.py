"""nri-cpu: an NRI plugin that gives containers exclusive CPUs.

Faults by number (A17) are those of docs/reliability.md.
"""

__version__ = "0.1.0"
