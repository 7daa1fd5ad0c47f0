"""Claims from files instead of a cluster: the directory, and what one file of it holds."""

from dra.claims_dir.directory import ClaimsDir

__all__ = ["ClaimsDir"]
