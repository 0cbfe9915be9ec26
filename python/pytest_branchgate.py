"""Fixtures of pytest that give tests a branch of their own. Needs nothing but the standard library.

BRANCHGATE_URL, BRANCHGATE_API_KEY (or BRANCHGATE_TOKEN) and BRANCHGATE_PROJECT (an ID) come from the environment.
A missing setting fails the tests that need a branch: they never fall back to another database.
"""

import contextlib
import http.client
import ipaddress
import json
import os
import secrets
import socket
import ssl
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass, field
from typing import Iterator, Optional

import pytest

LEASE_SECONDS = 60
#: The branches of files are made from it, however long the tests run.
SNAPSHOT_SECONDS = 86_400
RETRY_FOR_SECONDS = 60
#: A branch with other data than its source begins with a copy of the whole database.
PREPARED_WITHIN_SECONDS = 3600
RETRYABLE = (429, 503)
#: A family that a network drops without a word costs a session no more than this.
ADDRESS_WITHIN_SECONDS = 1


class BranchgateError(Exception):
    """The gateway refused a request."""


@dataclass
class Branch:
    name: str
    database_url: str = field(repr=False)
    direct_url: str = field(repr=False)
    #: File with the authority to trust, for `sslrootcert`; None for public authorities.
    ca_file: Optional[str]

    def verified(self, url: str) -> str:
        """The URL for libpq, which then verifies the server."""
        if self.ca_file is None:
            return url
        parts = urllib.parse.urlsplit(url)
        query = urllib.parse.urlencode({"sslmode": "verify-full", "sslrootcert": self.ca_file})
        return urllib.parse.urlunsplit(parts._replace(query=query))


def _required(*names: str) -> str:
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    raise BranchgateError(f"{names[0]} is missing: set it, so that the tests get branches")


def _ask_address(url: str, family: int) -> dict:
    """The response to `GET /api/v1/address` over this family."""
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    # All addresses of the host in turn, or the first one of the family.
    reached = host if family == socket.AF_UNSPEC else socket.getaddrinfo(host, port, family)[0][4][0]
    with contextlib.closing(http.client.HTTPConnection(host, port)) as connection:
        connection.sock = socket.create_connection((reached, port), ADDRESS_WITHIN_SECONDS)
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
        connection.request("GET", "/api/v1/address")
        return json.loads(connection.getresponse().read())


def _other_address(url: str) -> Optional[str]:
    """
    The address of this computer in the family by which its requests do not reach the gateway: its connections to a
    database may use either. None if there is none, or if the gateway does not say.
    """
    try:
        own = _ask_address(url, socket.AF_UNSPEC)
        version = ipaddress.ip_address(own["address"]).version
        if version == 4:
            other = _ask_address(own["ipv6_url"] or url, socket.AF_INET6)["address"]
        else:
            other = _ask_address(own["ipv4_url"] or url, socket.AF_INET)["address"]
        return None if ipaddress.ip_address(other).version == version else other
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return None


class Gateway:
    def __init__(self) -> None:
        base = _required("BRANCHGATE_URL").rstrip("/")
        self._token = _required("BRANCHGATE_API_KEY", "BRANCHGATE_TOKEN")
        self._base = base
        other = _other_address(base)
        self._allow = ["me", *([] if other is None else [other])]
        project = f"/api/v1/projects/{_required('BRANCHGATE_PROJECT')}"
        self._branches = f"{project}/branches"
        self._snapshots = f"{project}/snapshots"

    def _call(self, method: str, path: str, body: Optional[dict] = None):
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            # Another process may just have written what this one reads.
            "X-Branchgate-Bookmark": "primary",
        }
        if method == "POST":
            headers["Idempotency-Key"] = str(uuid.uuid4())
        data = None if body is None else json.dumps(body).encode()
        is_prepared = body is not None and body.get("data", "full") != "full"
        limit = PREPARED_WITHIN_SECONDS if is_prepared else RETRY_FOR_SECONDS
        left = limit
        while True:
            request = urllib.request.Request(self._base + path, data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=90) as response:
                    text = response.read()
                    if response.status != 202 or method != "POST":
                        return json.loads(text) if text else None
                    # Still in progress: the same key gets the response that the creation would have had.
                    pause = 1
            except urllib.error.HTTPError as error:
                text = error.read()
                pause = int(error.headers.get("Retry-After") or 0)
                in_flight = error.code == 409 and b"IDEMPOTENCY_IN_FLIGHT" in text
                if in_flight:
                    pause = 1
                elif error.code not in RETRYABLE or pause == 0:
                    raise BranchgateError(f"{error.code} {text.decode(errors='replace')}") from None
            left -= pause
            if left < 0:
                raise BranchgateError(f"{method} {path} did not succeed within {limit} seconds")
            time.sleep(pause)

    def find(self, name: str) -> str:
        listed = self._call("GET", self._branches)["branches"]
        for branch in listed:
            if name in (branch["branch_name"], branch["id"]):
                return branch["id"]
        raise BranchgateError(f"the project has no branch {name}")

    @contextlib.contextmanager
    def snapshot(self, source: str) -> Iterator[Optional[str]]:
        """
        The ID of a snapshot of a branch, which the host keeps clones of, until the block ends. None if the key may take
        none, or the project has as many as it can have.
        """
        path = f"{self._branches}/{self.find(source)}/snapshots"
        try:
            taken = self._call("POST", path, {"name": "pytest", "ttl_seconds": SNAPSHOT_SECONDS})["id"]
        except BranchgateError:
            yield None
            return
        try:
            yield taken
        finally:
            # It expires if this fails.
            with contextlib.suppress(BranchgateError, OSError):
                self._call("DELETE", f"{self._snapshots}/{taken}")

    @contextlib.contextmanager
    def branch(self, source: str, data: str = "full", snapshot: Optional[str] = None) -> Iterator[Branch]:
        """A leased branch of the snapshot or of the source, renewed until the block ends and then deleted."""
        origin = {"snapshot_id": snapshot} if snapshot else {"source_branch_id": self.find(source)}
        made = self._call(
            "POST",
            self._branches,
            {
                "branch_name": f"pytest-{secrets.token_hex(6)}",
                **origin,
                "data": data,
                "lease_seconds": LEASE_SECONDS,
                "connection_attempts_per_minute": "max",
                "allow": self._allow,
                "include": ["credentials"],
                "labels": {"purpose": "tests"},
            },
        )
        path = f"{self._branches}/{made['id']}"
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(LEASE_SECONDS / 3):
                # A failed renewal is repeated by the next one.
                with contextlib.suppress(BranchgateError, OSError):
                    self._call("POST", f"{path}/lease")

        threading.Thread(target=renew, daemon=True).start()
        credentials = made["credentials"]
        authority = credentials["ca_certificate"]
        with tempfile.TemporaryDirectory(prefix="branchgate-") as folder:
            ca_file = None
            if authority is not None:
                ca_file = os.path.join(folder, "ca.pem")
                with open(ca_file, "w", encoding="ascii") as file:
                    file.write(authority)
                # For programs that a test starts, such as a migration.
                for variable in ("PGSSLROOTCERT", "NODE_EXTRA_CA_CERTS"):
                    os.environ[variable] = ca_file
            try:
                yield Branch(made["branch_name"], credentials["database_url"], credentials["direct_url"], ca_file)
            finally:
                ended.set()
                # The branch is deleted at the end of its lease if this fails.
                with contextlib.suppress(BranchgateError, OSError):
                    self._call("DELETE", path)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("branchgate_source", "branch that the branches of tests are made from", default="main")
    parser.addini("branchgate_data", "what they have of it: full, masked or none", default="full")


@pytest.fixture(scope="session")
def branchgate_source(request: pytest.FixtureRequest) -> str:
    """Name or ID of the source. Override it to migrate a branch first."""
    return request.config.getini("branchgate_source")


@pytest.fixture(scope="session")
def branchgate_data(request: pytest.FixtureRequest) -> str:
    """Everything (full), masked by the policy of the project, or the schema without rows (none)."""
    return request.config.getini("branchgate_data")


@pytest.fixture(scope="session")
def branchgate_gateway() -> Gateway:
    return Gateway()


@pytest.fixture(scope="session")
def branch(branchgate_gateway: Gateway, branchgate_source: str, branchgate_data: str) -> Iterator[Branch]:
    """A branch of this session; with pytest-xdist, of this worker."""
    with branchgate_gateway.branch(branchgate_source, branchgate_data) as made:
        yield made


@pytest.fixture(scope="session")
def branchgate_snapshot(
    branchgate_gateway: Gateway, branchgate_source: str, branchgate_data: str
) -> Iterator[Optional[str]]:
    """A snapshot of the source for the branches of files, taken when the first file asks for one."""
    if branchgate_data != "full":
        yield None
        return
    with branchgate_gateway.snapshot(branchgate_source) as taken:
        yield taken


@pytest.fixture(scope="module")
def module_branch(
    branchgate_gateway: Gateway, branchgate_source: str, branchgate_data: str, branchgate_snapshot: Optional[str]
) -> Iterator[Branch]:
    """A branch of this test file."""
    with branchgate_gateway.branch(branchgate_source, branchgate_data, branchgate_snapshot) as made:
        yield made
