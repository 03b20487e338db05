"""How a script ends: well, with an error of the user's in one line, or with the traceback of a fault."""

import errno
import os
import sys
from collections.abc import Callable

from aotadmm_timm.errors import UserError

# What a disk says, whatever the program does: full, over quota, read-only, not this user's, broken, too large a file.
_OF_THE_DISK = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG,
}  # fmt: skip


def run(main: Callable[[], None]) -> None:
    """Calls a script's `main`. What is raised on purpose ends in one line on stderr, all else with its traceback.

    A UserError, and an OSError that tells of the disk, give exit status 2; an interrupt gives 130. With
    AOTADMM_TIMM_TRACEBACK=1 a UserError shows where it came from, too.
    """
    try:
        main()
    except (UserError, OSError) as err:
        if os.environ.get("AOTADMM_TIMM_TRACEBACK") or (isinstance(err, OSError) and err.errno not in _OF_THE_DISK):
            raise
        _end(" ".join(str(err).split()), 2)
    except KeyboardInterrupt:
        _end("interrupted", 130)


def _end(message: str, status: int) -> None:
    rank = os.environ.get("RANK", "0")
    print(f"error{f' (rank {rank})' if rank != '0' else ''}: {message}", file=sys.stderr)
    raise SystemExit(status) from None
