"""The commands of dra-cpu, a file each. They are imported when they are called: most need little of what run needs."""
