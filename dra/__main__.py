"""python -m dra: the dra-cpu command."""

from dra.cli import main

raise SystemExit(main())
