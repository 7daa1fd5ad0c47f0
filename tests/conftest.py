"""What all tests share. Hypothesis has no deadline per example: that would be a timed assertion on a busy machine."""

from hypothesis import settings

settings.register_profile("nri-cpu", deadline=None)
settings.load_profile("nri-cpu")
