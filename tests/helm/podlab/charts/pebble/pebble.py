"""A server to be run in pods: says who it is, finds its peers by DNS, can be made to hang."""

import argparse
import json
import os
import signal
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--name")
parser.add_argument("--peers")
parser.add_argument("--peers-needed", type=int)
options = parser.parse_args()

boots_file = Path("/data/boots")
boots = int(boots_file.read_text()) + 1 if boots_file.exists() else 1
boots_file.write_text(str(boots))
hung = Event()


def peers() -> list[str]:
    """Addresses of the headless service."""
    try:
        found = socket.getaddrinfo(options.peers, options.port, socket.AF_INET)
    except OSError:
        return []
    return sorted({str(entry[4][0]) for entry in found})


def write_root() -> str:
    """What comes of writing to the root file system."""
    try:
        Path("/written").write_text("x")
    except OSError as error:
        return os.strerror(error.errno or 0)
    return "written"


def describe() -> dict[str, object]:
    """Everything that a pod is told."""
    return {
        "name": options.name,
        "host": socket.gethostname(),
        "boots": boots,
        "pid": os.getpid(),
        "uid": os.getuid(),
        "groups": os.getgroups(),
        "ip": os.environ["POD_IP"],
        "token": os.environ["TOKEN"],
        "greeting": os.environ["GREETING"],
        "memory": os.environ["MEMORY"],
        "prepared": Path("/tmp/prepared").read_text().strip(),
        "root": write_root(),
    }


class Handler(BaseHTTPRequestHandler):
    """One answer for each path."""

    def do_GET(self) -> None:
        """Answer."""
        status, body = 200, "ok"
        match self.path:
            case "/ready":
                status = 200 if len(peers()) >= options.peers_needed else 503
            case "/alive":
                status = 500 if hung.is_set() else 200
            case "/hang":
                hung.set()
            case "/peers":
                body = json.dumps(peers())
            case "/":
                body = json.dumps(describe())
            case _:
                pass
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode() + b"\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def stop(*_: object) -> None:
    """Stop as asked."""
    print("asked to stop", flush=True)
    os._exit(0)


signal.signal(signal.SIGTERM, stop)
print(f"{options.name} serves", flush=True)
ThreadingHTTPServer(("0.0.0.0", options.port), Handler).serve_forever()
