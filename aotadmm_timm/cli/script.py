"""How a script ends: well, with an error of the user's in one line, or with the traceback of a fault."""

import os
import sys
from collections.abc import Callable


def run(main: Callable[[], None]) -> None:
    """Calls a script's `main`; bad input ends in one line on stderr and exit status 2, an interrupt in status 130.

    AOTADMM_TIMM_TRACEBACK=1 shows where the error came from.
    """
    try:
        main()
    except (ValueError, OSError, ModuleNotFoundError) as err:
        if os.environ.get("AOTADMM_TIMM_TRACEBACK"):
            raise
        rank = os.environ.get("RANK", "0")
        where = f" (rank {rank})" if rank != "0" else ""
        print(f"error{where}: {' '.join(str(err).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
