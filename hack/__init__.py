"""Programs for developers, one job each."""
