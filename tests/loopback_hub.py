"""A Hugging Face Hub on 127.0.0.1: model repositories over real HTTP, and switches that make it misbehave.

Speaks what huggingface_hub uses to push and fetch a model: repository and branch creation, pre-upload, Git LFS (basic
and multipart), commits with a parent, file resolution with a redirect of large files to a "CDN" that gets no token.

    with LoopbackHub() as hub:
        subprocess.run([...], env={**os.environ, **hub.environment(tmp_path / "cache")})
        assert "README.md" in hub.files("org/name")
"""

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_loopbacktoken1234567890"
LARGE = (".safetensors", ".png")  # file name endings that go through LFS
REPO = r"(?P<repo>[^/]+/[^/]+)"


@dataclass
class Faults:
    """What goes wrong. `status` maps the name of a route to the status that it answers with, always."""

    status: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)  # routes that accept and never answer
    refuse_upload: int | None = None  # the n-th uploaded file (from 1) is refused by the storage
    cut_uploads: int = 0  # this many uploads lose their connection half-way
    moved_branch: bool = False  # somebody else commits just before the next commit
    hidden: set[str] = field(default_factory=set)  # repositories that exist but that this token cannot see


@dataclass
class File:
    content: bytes
    large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def blob_id(self) -> str:
        """Git's name for what the repository stores: the content, or the LFS pointer that stands for it."""
        stored = self.content
        if self.large:
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(stored)}\n"
            stored = pointer.encode()
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()


Commit = dict[str, File]


@dataclass
class Repository:
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: Commit) -> str:
        oid = hashlib.sha1(f"{sorted(files)} {time.time_ns()}".encode()).hexdigest()
        self.commits[oid] = files
        self.branches[branch] = oid
        return oid

    def find(self, revision: str) -> str | None:
        return self.branches.get(revision) or (revision if revision in self.commits else None)


class LoopbackHub:
    """The server and its state. `multipart`: LFS part size in bytes, 0 for one part. `cdn`: redirect large files."""

    def __init__(self, *, multipart: int = 0, cdn: bool = False) -> None:
        self.multipart, self.cdn = multipart, cdn
        self.faults = Faults()
        self.repositories: dict[str, Repository] = {}
        self.storage: dict[str, bytes] = {}  # LFS objects, and the parts of unfinished ones, by SHA-256
        self.requests: list[str] = []  # "METHOD route", in order
        self.closing = threading.Event()
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True

    def __enter__(self) -> "LoopbackHub":
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """Variables that point a client process at this Hub; they count only if set before it starts."""
        variables = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        return {**variables, **({"HF_TOKEN": token} if token else {})}

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        repository = self.repositories[repo]
        return {name: file.content for name, file in repository.commits[repository.branches[revision]].items()}


class _Answer(Exception):
    """Raised by a route to answer with an error, as the Hub words it."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


Reply = tuple[int, Any, dict[str, str]]
ROUTES: list[tuple[str, re.Pattern[str], Callable[..., Reply]]] = []


def route(method: str, pattern: str) -> Callable[[Callable[..., Reply]], Callable[..., Reply]]:
    def register(function: Callable[..., Reply]) -> Callable[..., Reply]:
        ROUTES.append((method, re.compile(pattern.replace("REPO", REPO)), function))
        return function

    return register


@route("POST", "/api/repos/create")
def create(hub: LoopbackHub, body: bytes) -> Reply:
    wanted = json.loads(body)
    name = f"{wanted.get('organization') or 'tester'}/{wanted['name']}"
    if name in hub.repositories or name in hub.faults.hidden:
        raise _Answer(409, "You already created this model repo")
    private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
    repository = hub.repositories[name] = Repository(private)
    attributes = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
    repository.commit("main", {".gitattributes": File(attributes, large=False)})
    return 200, {"url": f"{hub.url}/{name}", "name": name, "id": name}, {}


@route("DELETE", "/api/repos/delete")
def delete(hub: LoopbackHub, body: bytes) -> Reply:
    wanted = json.loads(body)
    del hub.repositories[f"{wanted.get('organization') or 'tester'}/{wanted['name']}"]
    return 200, {}, {}


@route("POST", "/api/validate-yaml")
def validate(hub: LoopbackHub, body: bytes) -> Reply:
    ok = json.loads(body)["content"].startswith("---\n")
    return 200 if ok else 400, {"errors": [] if ok else [{"message": "no metadata"}], "warnings": []}, {}


@route("POST", "/api/models/REPO/branch/(?P<branch>.+)")
def branch(hub: LoopbackHub, body: bytes, repo: str, branch: str) -> Reply:
    repository = _repository(hub, repo)
    repository.branches[unquote(branch)] = repository.branches["main"]
    return 200, {}, {}


@route("GET", "/api/models/REPO(/revision/(?P<revision>[^/]+))?")
def info(hub: LoopbackHub, body: bytes, repo: str, revision: str | None) -> Reply:
    oid, files = _commit(hub, repo, revision or "main")
    siblings = [{"rfilename": name} for name in sorted(files)]
    return 200, {"_id": oid[:24], "id": repo, "sha": oid, "private": False, "tags": [], "siblings": siblings}, {}


@route("POST", "/api/models/REPO/preupload/(?P<revision>[^/]+)")
def preupload(hub: LoopbackHub, body: bytes, repo: str, revision: str) -> Reply:
    oid, files = _commit(hub, repo, revision)
    answers = []
    for wanted in json.loads(body)["files"]:
        path = wanted["path"]
        answer = {"path": path, "shouldIgnore": False, "uploadMode": "lfs" if path.endswith(LARGE) else "regular"}
        if path in files:
            answer["oid"] = files[path].sha256 if files[path].large else files[path].blob_id
        answers.append(answer)
    return 200, {"commitOid": oid, "files": answers}, {}


@route("POST", "/api/models/REPO/paths-info/(?P<revision>[^/]+)")
def paths_info(hub: LoopbackHub, body: bytes, repo: str, revision: str) -> Reply:
    _, files = _commit(hub, repo, revision)
    asked = re.findall(r"paths=([^&]+)", body.decode()) or json.loads(body)["paths"]
    rows = []
    for path in map(unquote, asked):
        if path in files:
            file = files[path]
            row = {"type": "file", "path": path, "oid": file.blob_id, "size": len(file.content)}
            if file.large:
                row["lfs"] = {"oid": file.sha256, "size": len(file.content), "pointerSize": 134}
            rows.append(row)
    return 200, rows, {}


@route("POST", "/api/models/REPO/commit/(?P<revision>[^/]+)")
def commit(hub: LoopbackHub, body: bytes, repo: str, revision: str) -> Reply:
    repository, name = _repository(hub, repo), unquote(revision)
    if hub.faults.moved_branch:
        repository.commit(name, {**repository.commits[repository.branches[name]], "other.txt": File(b"mine", False)})
    oid, files = _commit(hub, repo, revision)
    new = dict(files)
    for line in body.splitlines():
        kind, value = (entry := json.loads(line))["key"], entry["value"]
        if kind == "header" and value.get("parentCommit") not in (None, oid):
            raise _Answer(412, "A commit has happened since. Please refresh and try again.")
        if kind == "file":
            new[value["path"]] = File(base64.b64decode(value["content"]), large=False)
        elif kind == "lfsFile":
            if value["oid"] not in hub.storage:
                raise _Answer(400, f"LFS pointer pointed to a file that does not exist: {value['path']}")
            new[value["path"]] = File(hub.storage[value["oid"]], large=True)
    oid = repository.commit(name, new)
    return 200, {"success": True, "commitOid": oid, "commitUrl": f"{hub.url}/{repo}/commit/{oid}", "hookOutput": ""}, {}


@route("POST", "/REPO.git/info/lfs/objects/batch")
def lfs_batch(hub: LoopbackHub, body: bytes, repo: str) -> Reply:
    answers = []
    for wanted in json.loads(body)["objects"]:
        oid, size = wanted["oid"], wanted["size"]
        answer: dict[str, Any] = {"oid": oid, "size": size}
        if oid not in hub.storage:
            upload: dict[str, Any] = {"href": f"{hub.url}/storage/{oid}"}
            if hub.multipart:
                parts = range(1, -(-size // hub.multipart) + 1)
                urls = {f"{part:05d}": f"{hub.url}/storage/{oid}.{part}" for part in parts}
                upload = {"href": f"{hub.url}/complete/{oid}", "header": {"chunk_size": str(hub.multipart), **urls}}
            answer["actions"] = {"upload": upload, "verify": {"href": f"{hub.url}/verify/{oid}"}}
        answers.append(answer)
    return 200, {"transfer": "multipart" if hub.multipart else "basic", "objects": answers}, {}


@route("PUT", "/storage/(?P<key>[0-9a-f]{64}(\\.[0-9]+)?)")
def store(hub: LoopbackHub, body: bytes, key: str) -> Reply:
    if hub.requests.count("PUT store") == hub.faults.refuse_upload:
        raise _Answer(403, "the storage refuses this file")
    hub.storage[key] = body
    return 200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}


@route("POST", "/complete/(?P<oid>[0-9a-f]{64})")
def complete(hub: LoopbackHub, body: bytes, oid: str) -> Reply:
    hub.storage[oid] = b"".join(hub.storage.pop(f"{oid}.{part['partNumber']}") for part in json.loads(body)["parts"])
    return verify(hub, body, oid)


@route("POST", "/verify/(?P<oid>[0-9a-f]{64})")
def verify(hub: LoopbackHub, body: bytes, oid: str) -> Reply:
    if hashlib.sha256(hub.storage.get(oid, b"")).hexdigest() != oid:
        hub.storage.pop(oid, None)
        raise _Answer(422, "the stored object has another hash")
    return 200, {}, {}


@route("GET", "/cdn/(?P<oid>[0-9a-f]{64})")
def cdn(hub: LoopbackHub, body: bytes, oid: str) -> Reply:
    return 200, hub.storage[oid], {}


@route("GET", "/REPO/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
def resolve(hub: LoopbackHub, body: bytes, repo: str, revision: str, path: str) -> Reply:
    oid, files = _commit(hub, repo, revision)
    file = files.get(unquote(path))
    if file is None:
        raise _Answer(404, "Entry not found", "EntryNotFound")
    headers = {"X-Repo-Commit": oid, "ETag": f'"{file.sha256 if file.large else file.blob_id}"'}
    if file.large:
        headers |= {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.content))}
        if hub.cdn:  # another host name, so that the client must drop its token
            return 302, b"", {**headers, "Location": f"http://localhost:{hub.server.server_port}/cdn/{file.sha256}"}
    return 200, file.content, headers


def _repository(hub: LoopbackHub, repo: str) -> Repository:
    if repo not in hub.repositories:
        raise _Answer(404, "Repository not found", "RepoNotFound")
    return hub.repositories[repo]


def _commit(hub: LoopbackHub, repo: str, revision: str) -> tuple[str, Commit]:
    repository = _repository(hub, repo)
    oid = repository.find(unquote(revision))
    if oid is None:
        raise _Answer(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    return oid, repository.commits[oid]


def _handler(hub: LoopbackHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def answer(self) -> None:
            path = urlsplit(self.path).path
            method = "GET" if self.command == "HEAD" else self.command
            matches = ((f, pattern.fullmatch(path)) for wanted, pattern, f in ROUTES if wanted == method)
            function, match = next(((f, found) for f, found in matches if found), (None, None))
            if function is None or match is None:
                return self.reply(404, {"error": f"no route {method} {path}"}, {})
            name = function.__name__
            hub.requests.append(f"{self.command} {name}")
            if name in hub.faults.silent:
                hub.closing.wait()
                return None
            if name == "store" and hub.faults.cut_uploads > 0:
                hub.faults.cut_uploads -= 1
                self.rfile.read(int(self.headers.get("Content-Length") or 4096) // 2)
                self.close_connection = True
                return None
            body = self.body()
            try:
                if name in hub.faults.status:
                    raise _Answer(hub.faults.status[name], "as told")
                self.check_token(method, name)
                with hub.lock:
                    self.reply(*function(hub, body, **match.groupdict()))
            except _Answer as error:
                headers = {"X-Error-Code": error.code, "X-Error-Message": str(error)}
                self.reply(error.status, {"error": str(error)}, headers)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

        def check_token(self, method: str, name: str) -> None:
            sent = self.headers.get("Authorization")
            if name in ("cdn", "store") and sent:
                raise _Answer(400, "the token was sent to the storage")
            anonymous = name in ("cdn", "store", "verify", "complete", "validate", "resolve", "info")
            if (not anonymous or sent) and sent != f"Bearer {TOKEN}":
                raise _Answer(401, "Invalid username or password.")

        def body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def reply(self, status: int, content: Any, headers: dict[str, str]) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
            for key, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    return Handler
