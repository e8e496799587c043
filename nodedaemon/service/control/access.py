"""The caller of a request, and what that caller may see and do."""

from __future__ import annotations

import os
from dataclasses import dataclass

from nodedaemon.config import Settings
from nodedaemon.wire.envelope import NotPermittedError
from nodedaemon.wire.trust import PeerCredentials
from nodedaemon.wire.users import user_name


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller as the kernel identifies it. Root and the daemon's own user may do everything."""

    credentials: PeerCredentials
    is_owner: bool
    is_admin: bool
    is_operator: bool

    @classmethod
    def identify(cls, credentials: PeerCredentials, settings: Settings) -> Caller:
        is_owner = credentials.uid in (0, os.geteuid())
        name = user_name(credentials.uid)
        is_admin = is_owner or name in settings.cluster.admins
        return cls(credentials, is_owner, is_admin, is_admin or name in settings.cluster.operators)

    @classmethod
    def daemon_itself(cls) -> Caller:
        return cls(PeerCredentials(os.getpid(), os.geteuid(), os.getegid()), True, True, True)  # noqa: FBT003

    def may_see(self, uid: int) -> bool:
        """Whether the caller may see the jobs of this user."""
        return self.is_operator or uid == self.credentials.uid

    def require_admin(self, verb: str) -> None:
        if not self.is_admin:
            raise NotPermittedError(f"{verb}: uid {self.credentials.uid}: admins only; see Admins in salus.conf")

    def require_owner(self, verb: str) -> None:
        if not self.is_owner:
            raise NotPermittedError(f"{verb}: uid {self.credentials.uid}: only for Slurm's hooks, which run as root")
