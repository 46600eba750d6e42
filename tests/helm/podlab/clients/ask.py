"""Asks one thing over plain HTTP, as the user whom the environment names, and prints the status and the answer as JSON.

A refusal is an answer, too.
"""

import argparse
import base64
import json
import os
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

ANSWER_S = 20


def authorization() -> dict[str, str]:
    """The header that says who asks, as ``milena`` would send it; empty when the environment names nobody."""
    user = os.environ.get("MILENA_USER")
    if user is None:
        return {}
    password = Path(os.environ["MILENA_PASSWORD_FILE"]).read_text(encoding="utf-8").strip()
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def main() -> None:
    """Read the command line, ask, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--method", default="GET")
    parser.add_argument("--authorization", help="in place of the environment's")
    options = parser.parse_args()
    headers = authorization()
    if options.authorization:
        headers = {"Authorization": options.authorization}
    request = Request(options.url, method=options.method, headers=headers)
    try:
        with urlopen(request, timeout=ANSWER_S) as answer:
            status, body = answer.status, answer.read()
    except HTTPError as refused:
        status, body = refused.code, refused.read()
    print(json.dumps({"status": status, "body": body.decode()}))


if __name__ == "__main__":
    main()
