"""The name of a user by uid, for every program of Salus."""

from __future__ import annotations

import pwd
from functools import lru_cache


def user_name(uid: int) -> str:
    """The login name; the uid as text if the system does not know the user."""
    try:
        return _login_name(uid)
    except KeyError:
        return str(uid)


# A missing name raises and is not cached: the directory service may know it the next time.
@lru_cache(maxsize=4096)
def _login_name(uid: int) -> str:
    return pwd.getpwuid(uid).pw_name
