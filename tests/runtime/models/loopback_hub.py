"""A small model hub on the loopback: the part of the hub's HTTP interface that a pull uses."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


class LoopbackHub(ThreadingHTTPServer):
    """Serves `files` as owner/name at branch main.

    Downloads longer than `cut_after` bytes break off there, `cuts_left` times: the connection closes, or,
    with `hang`, stays open and silent (then `reached` is set).
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.commit = COMMIT
        self.cut_after: int | None = None
        self.damaged: set[str] = set()  # files sent with other bytes than announced
        self.cuts_left = 0
        self.hang = False
        self.reached = threading.Event()
        self.sent: dict[str, int] = {}  # bytes sent of each file
        self.ranges: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._file(body=False)

    def do_GET(self) -> None:
        if not self.path.startswith("/api/"):
            self._file(body=True)
        elif self.path.split("?")[0] in (
            "/api/models/owner/name",
            "/api/models/owner/name/revision/main",
            f"/api/models/owner/name/revision/{self.server.commit}",
        ):
            self._json(self._info())
        elif self.path.startswith("/api/models/owner/name/"):
            self._refuse("RevisionNotFound")
        else:
            self._refuse("RepoNotFound")

    def _info(self) -> object:
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "lfs": {"size": len(data), "sha256": _etag(data), "pointerSize": 9},
            }
            for name, data in self.server.files.items()
        ]
        return {"id": "owner/name", "sha": self.server.commit, "siblings": siblings}

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self, *, body: bool) -> None:
        name = self.path.split(f"/resolve/{self.server.commit}/")[-1]
        data = self.server.files.get(name)
        if data is None:
            self._refuse("EntryNotFound")
            return
        start = self._range_start()
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{_etag(data)}"')
        self.send_header("X-Repo-Commit", self.server.commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body:
            self._send(name, data[start:])

    def _range_start(self) -> int:
        wanted = self.headers.get("Range", "")
        if not wanted.startswith("bytes="):
            return 0
        self.server.ranges.append(wanted)
        return int(wanted.removeprefix("bytes=").split("-")[0])

    def _send(self, name: str, data: bytes) -> None:
        hub = self.server
        cut = hub.cut_after is not None and len(data) > hub.cut_after and hub.cuts_left > 0
        if cut:
            hub.cuts_left -= 1
            data = data[: hub.cut_after]
            self.close_connection = True
        if name in hub.damaged:
            data = bytes(len(data))
        hub.sent[name] = hub.sent.get(name, 0) + len(data)
        self.wfile.write(data)
        if cut and hub.hang:
            hub.reached.set()
            self.rfile.read(1)  # until the client is gone


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
