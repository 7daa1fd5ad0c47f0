"""How long to wait before each further try: exponential, with jitter, for ever (fault R6)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

# Half a second is about what a restarting containerd needs to listen again; half a minute bounds how long a runtime
# that is back has to wait for its plugin.
FIRST = 0.5
LONGEST = 30.0


def delays(
    first: float = FIRST, longest: float = LONGEST, chance: Callable[[], float] = random.random
) -> Iterator[float]:
    """Seconds to wait before the second try, the third, and so on; never ends. Start anew after a success.

    Each lies between half of and the whole of a bound that begins with `first` and doubles up to `longest`, so that the
    plugins of many nodes, or several on one, do not come back in step. `chance` gives numbers from 0 to 1.
    """
    bound = min(first, longest)
    while True:
        yield bound * (1 + chance()) / 2
        bound = min(bound * 2, longest)
