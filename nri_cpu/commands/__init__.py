"""The commands of nri-cpu, a file each, imported when they are called."""
