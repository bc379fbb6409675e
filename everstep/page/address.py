"""The address that opens the page: shown to the user, and opened where there is a desktop.

The code is in the fragment, which a browser never sends: no log of a server or a proxy can hold it. The browser is
started with the name of a private file that leads to the address, because other users can see command lines."""

from __future__ import annotations

import contextlib
import html
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from everstep import env
from everstep.page.sessions import CODE_S
from everstep.storage import private_file

EXPERIMENTS = "experiments"  # a view

_READ_S = 60.0  # for the browser to read the file


def page_address(url: str, code: str, job: str = "", view: str = "") -> str:
    """`view`: instead of a job's."""
    view = f"jobs/{quote(job, safe='')}" if job else view
    return f"{url.rstrip('/')}/{view}#code={code}"


def show_page(say: Callable[[str], None], address: str, *, is_opened: bool) -> None:
    say(f"open the page (once, within {CODE_S / 60:.0f} minutes): {address}")
    if is_opened and has_desktop():
        threading.Thread(target=_open, args=(address,), name="open the page", daemon=True).start()


def has_desktop() -> bool:
    """Whether a browser that is opened here is seen by the person who types."""
    if env.value("SSH_CONNECTION") or env.value("SSH_TTY"):
        return False
    return sys.platform == "darwin" or bool(env.value("DISPLAY") or env.value("WAYLAND_DISPLAY"))


def _open(address: str) -> None:
    with contextlib.suppress(OSError, webbrowser.Error), tempfile.TemporaryDirectory(prefix="everstep-page-") as folder:
        path = Path(folder) / "open.html"
        target = html.escape(address, quote=True)
        private_file.write(path, f'<meta http-equiv="refresh" content="0;url={target}">'.encode())
        if webbrowser.open(path.as_uri()):
            threading.Event().wait(_READ_S)
