"""Servers on 127.0.0.1 for tests: files of the web, and as much of the Hugging Face Hub as huggingface_hub uses."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], **state: Any) -> Iterator[Any]:
    """Serve in a thread; the server carries `state`, and `url`."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    for name, value in state.items():
        setattr(server, name, value)
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Quiet(BaseHTTPRequestHandler):
    """Say nothing on stderr, and answer in a line."""

    server: Any
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        self.server.asked.append(f"{self.command} {self.path}")

    def answer(self, code: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        for key, value in {"Content-Length": str(len(content)), **named}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def answer_json(self, held: Any, code: int = 200, **headers: str) -> None:
        self.answer(code, json.dumps(held).encode(), Content_Type="application/json", **headers)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True


# -- files of the web ------------------------------------------------------------------------------------------------

Page = bytes | Callable[["Files"], None]


class Files(Quiet):
    """What is in `server.pages` by path: bytes, or a function that answers."""

    def do_GET(self) -> None:
        page: Page | None = self.server.pages.get(self.path)
        if page is None:
            self.answer(404)
        elif isinstance(page, bytes):
            self.answer(200, page)
        else:
            page(self)


@contextmanager
def files(pages: dict[str, Page]) -> Iterator[Any]:
    """Serve pages; `asked` is what was asked for."""
    with serving(Files, pages=pages, asked=[]) as server:
        yield server


# -- the hub ---------------------------------------------------------------------------------------------------------


class Hub(Quiet):
    """
    Repositories of models: made, committed to (small files in the commit, large ones as LFS objects), and read.

    `server.repos[name]` is a list of commits, each (id, files); `server.tags[name][tag]` is an id. `server.mishap` is
    called with (handler, name of the file, content) before a file is sent, and returns whether it answered itself.
    """

    def do_POST(self) -> None:
        content = self.body()
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self.answer_json({"error": "Invalid credentials"}, 401)
        elif self.path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked['organization']}/{asked['name']}"
            self.server.made.append(asked)
            new = name not in self.server.repos
            self.server.repos.setdefault(name, [])
            self.answer_json({"url": f"{self.server.url}/{name}"}, 200 if new else 409)
        elif self.path == "/api/validate-yaml":
            self.answer_json({"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/(\w+/[\w.-]+)/preupload/(\w+)", self.path):
            files = [
                {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular"}
                for f in json.loads(content)["files"]
            ]
            self.answer_json({"files": [{**f, "shouldIgnore": False} for f in files]})
        elif found := re.fullmatch(r"/(\w+/[\w.-]+)\.git/info/lfs/objects/batch", self.path):
            objects = [
                {**o, "actions": {"upload": {"href": f"{self.server.url}/objects/{o['oid']}", "header": {}}}}
                for o in json.loads(content)["objects"]
            ]
            self.answer_json({"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/models/(\w+/[\w.-]+)/commit/(\w+)", self.path):
            self.commit(found[1], [json.loads(line) for line in content.splitlines()])
        else:
            self.answer_json({"error": f"unknown: {self.path}"}, 400)

    def do_PUT(self) -> None:
        content = self.body()
        assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
        self.server.objects[self.path.rpartition("/")[2]] = content
        self.answer(200)

    def commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        commits = self.server.repos[name]
        files = dict(commits[-1][1]) if commits else {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
        ident = hashlib.sha1(f"{name}{len(commits)}".encode()).hexdigest()
        commits.append((ident, files))
        self.answer_json({"commitUrl": f"{self.server.url}/{name}/commit/{ident}", "commitOid": ident})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        found = re.fullmatch(r"/(\w+/[\w.-]+)/resolve/([^/]+)/([\w.-]+)", self.path)
        if found is None or found[1] not in self.server.repos:
            self.answer_json({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            return
        name, revision, file = found.groups()
        commits = self.server.repos[name]
        wanted = self.server.tags.get(name, {}).get(revision, revision)
        commit = next((c for c in commits if c[0] == wanted), commits[-1] if revision == "main" else None)
        if commit is None:
            self.answer_json({"error": "Invalid rev id"}, 404, X_Error_Code="RevisionNotFound")
        elif file not in commit[1]:
            self.answer_json({}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit[0])
        else:
            self.send_file(file, commit[1][file], commit[0])

    def send_file(self, file: str, content: bytes, ident: str) -> None:
        if self.command == "GET" and self.server.mishap is not None and self.server.mishap(self, file, content):
            return
        etag = {"X_Repo_Commit": ident, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked is None:
            self.answer(200, content, **etag)
        else:
            start = int(asked[1])
            part = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.answer(206, content[start:], Content_Range=part, **etag)


@contextmanager
def hub(token: str = "") -> Iterator[Any]:
    """Serve an empty hub, which takes commits with the token, if one is given."""
    with serving(Hub, repos={}, tags={}, objects={}, made=[], asked=[], mishap=None, token=token) as server:
        yield server
