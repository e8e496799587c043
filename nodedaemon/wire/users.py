"""The name of a user by uid, for every program of Salus."""

from __future__ import annotations

import pwd
import time
from functools import lru_cache

#: Names are cached for this long. After that the directory service may give another answer.
KEPT_S = 60


def user_name(uid: int) -> str:
    """The login name, or the uid as text if the system does not know the user."""
    return _login_name(uid, int(time.monotonic() // KEPT_S))


# A query to the directory service takes milliseconds, so a uid without a name must not cause one per request.
@lru_cache(maxsize=4096)
def _login_name(uid: int, _period: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
