"""nri-cpu: an NRI plugin that gives containers exclusive CPUs."""

__version__ = "0.1.0"
