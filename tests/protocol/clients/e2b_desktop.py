import base64
import io
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from urllib.parse import parse_qs, urlsplit

from e2b_desktop import Sandbox
from PIL import Image

TIMEOUT_S = 60
TLS = ssl.create_default_context()


def until(description, condition):
    """Wait until `condition` returns a true value, and return it. An exception counts as false."""
    last, deadline = None, time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if last := condition():
                return last
        except Exception as error:
            last = error
        time.sleep(0.2)
    raise AssertionError(f"{description}: {last!r}")


def windows_with(desktop, program, title):
    return [
        window_id
        for window_id in desktop.get_application_windows(program)
        if title in desktop.get_window_title(window_id)
    ]


def window_position(desktop, window):
    """Return the position of the window without its title bar, which xdotool counts twice."""
    output = desktop.commands.run(f"xwininfo -id {window}").stdout
    x, y = (int(re.search(rf"Absolute upper-left {axis}: +(-?\d+)", output)[1]) for axis in "XY")
    return x, y


def security_types(url):
    """Return the VNC security types that the server offers to a browser: 1 is none, 2 is a password."""
    host = urlsplit(url).hostname
    with socket.create_connection((host, 443), 20) as plain, TLS.wrap_socket(plain, server_hostname=host) as connection:
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET /websockify HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: binary\r\n\r\n"
        )
        connection.sendall(head.encode())
        reader = connection.makefile("rb")
        status = reader.readline()
        assert b" 101 " in status, status
        while reader.readline().strip():
            pass

        def frame():
            kind, length = reader.read(2)
            assert kind == 0x82, kind
            return reader.read(length)

        version = frame()
        assert version == b"RFB 003.008\n", version
        connection.sendall(bytes([0x82, 0x80 | len(version), 0, 0, 0, 0]) + version)
        offered = frame()
        if len(offered) == 1:
            offered += frame()
        return sorted(offered[1:])


def fetch_page(url):
    with urllib.request.urlopen(url, timeout=20, context=TLS) as response:
        return response.status, response.read().decode()


def is_refused(url):
    try:
        fetch_page(url)
    except urllib.error.HTTPError as error:
        return error.code == 502
    return False


desktop = Sandbox.create(resolution=(1280, 800))
try:
    picture = Image.open(io.BytesIO(desktop.screenshot()))
    assert (picture.format, picture.size) == ("PNG", (1280, 800)), picture
    until(
        "a desktop", lambda: len(Image.open(io.BytesIO(desktop.screenshot())).convert("RGB").getcolors(1 << 20)) > 100
    )
    assert desktop.get_screen_size() == (1280, 800)
    desktop.move_mouse(300, 200)
    assert desktop.get_cursor_position() == (300, 200)

    # type into a text editor and save with a hotkey
    desktop.files.write("/home/user/notes.txt", "hello\n")
    desktop.open("/home/user/notes.txt")
    [editor] = until("an editor", lambda: windows_with(desktop, "mousepad", "notes.txt"))
    until("its focus", lambda: "notes.txt" in desktop.get_window_title(desktop.get_current_window_id()))
    desktop.press(["ctrl", "end"])
    desktop.write("typed by 'a program'")
    desktop.press("enter")
    desktop.press(["ctrl", "s"])
    until("a saved file", lambda: desktop.files.read("/home/user/notes.txt") == "hello\ntyped by 'a program'\n")

    # use a terminal, then return to the editor with the mouse
    desktop.launch("xfce4-terminal")
    [terminal] = until("a terminal", lambda: windows_with(desktop, "xfce4-terminal", "Terminal"))
    until("its focus", lambda: "Terminal" in desktop.get_window_title(desktop.get_current_window_id()))
    desktop.write("echo $((6 * 7)) > answer.txt")
    desktop.press("enter")
    until("an answer", lambda: desktop.files.read("/home/user/answer.txt") == "42\n")
    x, y = window_position(desktop, editor)
    desktop.left_click(x + 100, y + 10)  # the menu bar
    desktop.press("escape")
    until("the editor's focus", lambda: "notes.txt" in desktop.get_window_title(desktop.get_current_window_id()))
    desktop.drag((x + 3, y + 38), (x + 300, y + 200))  # select all text
    desktop.write("replaced")
    desktop.press(["ctrl", "s"])
    until("a saved file", lambda: desktop.files.read("/home/user/notes.txt") == "replaced")
    desktop.scroll("down", 3)
    desktop.wait(100)

    # the screen in a browser, without and with a password
    desktop.stream.start()
    url = desktop.stream.get_url()
    status, text = fetch_page(url)
    assert (status, "noVNC" in text) == (200, True), text[:500]
    assert fetch_page(url.partition("/vnc.html")[0] + "/core/rfb.js")[0] == 200
    assert security_types(url) == [1]
    desktop.stream.stop()
    until("a closed port", lambda: is_refused(url))
    desktop.stream.start(require_auth=True)
    url = desktop.stream.get_url(auth_key=desktop.stream.get_auth_key(), view_only=True)
    query = parse_qs(urlsplit(url).query)
    assert query["password"] == [desktop.stream.get_auth_key()], url
    assert fetch_page(url)[0] == 200
    assert security_types(url) == [2]

    # windows survive a pause and accept input
    titles = [desktop.get_window_title(window_id) for window_id in (editor, terminal)]
    desktop.pause()
    desktop.connect()
    assert [desktop.get_window_title(window_id) for window_id in (editor, terminal)] == titles
    assert security_types(url) == [2]
    desktop.write("still here")
    desktop.press(["ctrl", "s"])
    until("a saved file", lambda: "still here" in desktop.files.read("/home/user/notes.txt"))
    desktop.stream.stop()
finally:
    desktop.kill()
