"""python -m nri_cpu: the nri-cpu command."""

from nri_cpu.cli import main

raise SystemExit(main())
